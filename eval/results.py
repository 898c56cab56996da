"""results.json: what an evaluation writes as plain data, and reads back for its reports and the terminal."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..configs.load import dump_config
from ..configs.schema import RunConfig
from ..envs.schemas import EnvironmentInfo
from ..provenance import versions
from .run_table import MAIN_METRIC, RunTable, headline
from .table import Comparison, Row, Table, TableScore


def provenance(
    config: RunConfig, environment: EnvironmentInfo, checkpoint: Path | None, checkpoint_hash: str, licence: str
) -> dict[str, Any]:
    """Where the numbers of a run come from; "" where no checkpoint was evaluated, or the licence is unknown."""
    from ..rollouts.policy import torch_dtype

    return {
        "name": config.name,
        "split": config.eval.split,
        "seed": config.seed,
        "permutations": config.eval.permutations,
        "bootstrap": config.eval.bootstrap,
        "policy": config.policy.model,
        "checkpoint": str(checkpoint) if checkpoint is not None else "",
        "environment": environment.model_dump(),
        "versions": versions(),
        "licence": licence,
        "config": dump_config(config),
        "checkpoint_hash": checkpoint_hash,
        "dtype": str(torch_dtype(config.policy)).removeprefix("torch."),
    }


def run_json(results: RunTable, provenance: Mapping[str, Any], created: str) -> dict[str, object]:
    """The results of a run: the table and everything needed to reproduce it."""
    return {
        "created": created,
        "headline": headline(results),
        "split": provenance["split"],
        "questions": results.table.questions,
        "sample": asdict(results.sample) if results.sample is not None else None,
        "turn": results.turn,
        "systems": [_system_json(row, results.score(row)) for row in results.rows],
        "training_free": [asdict(baseline) for baseline in results.tuned],
        "best_training_free": results.best_free,
        "notes": results.notes,
        "comparisons": [{**comparison_json(row), "verdict": row.verdict} for row in results.table.comparisons],
        "provenance": provenance,
    }


def _system_json(row: Row, score: TableScore) -> dict[str, object]:
    """One row of a run's table. Where no model wrote, every answer counts as one in the requested format."""
    costs = row.costs
    assert costs is not None, "every row of a run has records"
    return {
        **row.arm._asdict(),
        "n": score.n,
        "failed_searches": score.of - score.n,
        "metrics": score.metrics,
        "low": score.low,
        "high": score.high,
        "calls": costs.calls,
        "searches": costs.searches,
        "tokens": costs.tokens_out,
        "prompt_tokens": costs.tokens_in,
        "format_ok": costs.format_ok,
        "repeats": score.repeats,
        "cut": score.cut,
        "with_fall_back": score.with_fall_back if row.arm.turn else score.metrics[MAIN_METRIC],
    }


def table_json(table: Table) -> dict[str, object]:
    """A table of a spec."""
    comparisons = [{**comparison_json(row), "environment": row.environment} for row in table.comparisons]
    return {**asdict(replace(table, comparisons=[])), "comparisons": comparisons}


def comparison_json(row: Comparison) -> dict[str, object]:
    """The systems, the test and whether it is significant."""
    systems = {**row.arm._asdict(), "against": row.baseline._asdict()}
    return {**systems, **asdict(row.test), "p_holm": row.p_holm, "significant": row.significant}
