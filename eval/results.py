"""results.json: the tables of an evaluation as plain data, written and read back."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from .provenance import Provenance
from .run_table import MAIN_METRIC, RunTable, explanation, headline
from .statistics import PairedComparison
from .table import Arm, Comparison, MeanCosts, Row, Table, TableScore


def run_json(results: RunTable, provenance: Provenance, created: str) -> dict[str, Any]:
    """The results of a run: the table and everything needed to reproduce it."""
    return {
        "created": created,
        "headline": headline(results),
        "explanation": explanation(results, provenance.split),
        "split": provenance.split,
        "questions": results.table.questions,
        "sample": asdict(results.sample) if results.sample is not None else None,
        "turn": results.turn,
        "systems": [_system_json(row, results.score(row)) for row in results.rows],
        "training_free": [asdict(baseline) for baseline in results.tuned],
        "best_training_free": results.best_free,
        "notes": results.notes,
        "comparisons": [
            {**_comparison_json(row), "significant": row.significant, "verdict": row.verdict}
            for row in results.table.comparisons
        ],
        "provenance": asdict(provenance),
    }


def _system_json(row: Row, score: TableScore) -> dict[str, Any]:
    """One row of a run's table. Where no model wrote, every answer counts as one in the requested format."""
    costs = row.costs
    assert costs is not None, "every row of a run has records"
    return {
        **row.arm._asdict(),
        "n": score.n,
        "unscorable": score.of - score.n,
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


def table_json(table: Table) -> dict[str, Any]:
    """A table of a spec; `table_of` reads it back."""
    return {
        "title": table.title,
        "average": table.average,
        "questions": table.questions,
        "environments": table.environments,
        "rows": [_row_json(row) for row in table.rows],
        "comparisons": [
            {**_comparison_json(row), "environment": row.environment, "significant": row.significant}
            for row in table.comparisons
        ],
        "notes": table.notes,
    }


def table_of(content: Mapping[str, Any]) -> Table:
    """Parse a table of `table_json`. Raises KeyError or TypeError if it has another form."""
    return Table(
        title=content["title"],
        environments=content["environments"],
        questions=content["questions"],
        rows=[
            Row(
                arm=Arm(row["system"], row["turn"]),
                label=row["label"],
                scores={name: score and TableScore(**score) for name, score in row["scores"].items()},
                costs=row["costs"] and MeanCosts(**row["costs"]),
            )
            for row in content["rows"]
        ],
        comparisons=[
            Comparison(
                arm=Arm(row["system"], row["turn"]),
                baseline=Arm(row["against"]["system"], row["against"]["turn"]),
                environment=row["environment"],
                test=PairedComparison(**{field.name: row[field.name] for field in fields(PairedComparison)}),
                p_holm=row["p_holm"],
            )
            for row in content["comparisons"]
        ],
        notes=content["notes"],
        average=content["average"],
    )


def _row_json(row: Row) -> dict[str, Any]:
    scores = {name: asdict(score) if score is not None else None for name, score in row.scores.items()}
    costs = asdict(row.costs) if row.costs is not None else None
    return {**row.arm._asdict(), "label": row.label, "scores": scores, "costs": costs}


def _comparison_json(row: Comparison) -> dict[str, Any]:
    return {**row.arm._asdict(), "against": row.baseline._asdict(), **asdict(row.test), "p_holm": row.p_holm}
