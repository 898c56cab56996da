"""What learning cost and gained: searches, sampled tokens and minutes of trained policies and of optimised prompts.

Both are counted where they are made. A step of training logs its rollouts, a validation its answers (metrics.jsonl,
validation.jsonl); prompt optimisation logs every answer and proposal (evaluations.jsonl, proposals.jsonl).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..configs.evaluation import SpecConfig
from ..storage import logged_objects
from .run_baselines import untrained_twin
from .table import Table, signed, whole_datasets

HEAD = (
    "learned", "gain", "searches", "sampled tokens", "minutes",
    "gain per 1,000 searches", "per million tokens", "per minute",
)  # fmt: skip

_LOGS = {
    "metrics.jsonl": ("searches", "tokens/sampled", "seconds/step"),
    "validation.jsonl": ("searches", "tokens/sampled", "seconds"),
    "evaluations.jsonl": ("searches", "tokens", "seconds"),
    "proposals.jsonl": ("", "tokens", "seconds"),
}
"""The names of searches, tokens and seconds in each log."""


@dataclass(frozen=True, slots=True)
class LearningCost:
    """Totals of a run."""

    searches: float | None
    """None where the version that wrote the run did not count them."""
    tokens: float | None
    """Sampled tokens, likewise."""
    minutes: float | None
    prompt: bool
    """Whether a prompt was optimised; else weights were trained."""


def learning_cost(run: Path) -> LearningCost | None:
    """The cost of a run folder; None where it has no log."""
    logs = {name: logged_objects(run / name) for name in _LOGS if (run / name).is_file()}
    if not logs:
        return None

    def total(index: int) -> float | None:
        values = [
            record.get(name) for log, records in logs.items() if (name := _LOGS[log][index]) for record in records
        ]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        return sum(numbers) if len(numbers) == len(values) else None

    searches, tokens, seconds = map(total, range(3))
    return LearningCost(searches, tokens, seconds / 60 if seconds is not None else None, "evaluations.jsonl" in logs)


def learning_table(spec: SpecConfig, tables: Sequence[Table]) -> tuple[list[str], list[list[str]]] | None:
    """Header and rows: one for each run of a spec and environment, at its last turn. None without a run."""
    if not tables:
        return None
    table, rows = whole_datasets(tables)[-1], []
    for name, system in spec.systems.items():
        cost = learning_cost(Path(system.run).expanduser()) if system.run is not None else None
        twin = untrained_twin(spec, name)
        if cost is None or twin is None:
            continue
        for environment in table.environments:
            gain = table.gain(table.last(name), table.last(twin), environment, spec.metrics[0])
            label = f"{name} · {environment}" if len(table.environments) > 1 else name
            rows.append([label, "prompt (GEPA)" if cost.prompt else "weights (GRPO)", *_cells(cost, gain)])
    return (["", *HEAD], rows) if rows else None


def _cells(cost: LearningCost, gain: float | None) -> list[str]:
    def rate(amount: float | None, unit: float) -> str:
        return "–" if gain is None or not amount else signed(gain * unit / amount, 4)

    return [
        "–" if gain is None else signed(gain),
        *("–" if amount is None else f"{amount:,.0f}" for amount in (cost.searches, cost.tokens)),
        "–" if cost.minutes is None else f"{cost.minutes:.1f}",
        rate(cost.searches, 1_000),
        rate(cost.tokens, 1e6),
        rate(cost.minutes, 1),
    ]
