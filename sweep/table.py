"""The table of a sweep: what each run changed, how far it is, its validation, its final evaluation, its minutes.

Read from the run folders alone, so that it can be written at any time, also of runs on a cluster.
"""

from collections.abc import Mapping, Sequence
from csv import DictWriter
from io import StringIO
from pathlib import Path

from ..configs.evaluation import RAW
from ..configs.schema import RewardConfig
from ..eval.records import TRAINED
from ..markdown_tables import markdown_table
from ..rollouts.checkpoints import best_record, best_value
from ..storage import logged_objects, parse_json, write_text
from .runs import SweepPlan, SweepRun, text_of

_VALIDATION = "best validation "
"""Beginning of the columns with the best validation, of which there is one for each metric."""

Row = Mapping[str, str | float | None]


def write_table(plan: SweepPlan, failed: Mapping[str, int]) -> Path:
    """Write sweep.csv and sweep.md and return the latter; `failed` has the exit codes of runs that have failed just
    now. Raises StorageError."""
    rows = [_row(run, failed.get(run.name)) for run in plan.runs]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = StringIO()
    writer = DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(plan.folder / "sweep.csv", file.getvalue())
    path = plan.folder / "sweep.md"
    write_text(path, _as_markdown(plan.name, columns, rows))
    return path


def _row(run: SweepRun, exit_code: int | None) -> Row:
    config, record = run.config, best_record(run.folder)
    row: dict[str, str | float | None] = {
        "run": run.name,
        **{key: text_of(value) for key, value in run.overrides.items()},
        "state": _state(run) if exit_code is None else f"failed (exit code {exit_code})",
    }
    if record is not None:
        best = best_value(record, config.reward.objective, len(config.rollout.branching))
        row |= {f"{_VALIDATION}{_objective(config.reward)}": best, "step": int(record["step"] or 0)}
    for name, path in run.result_files.items():
        if path.is_file():
            row |= _final_scores(name, path)
    return {**row, "minutes": _minutes(run.folder)}


def _minutes(folder: Path) -> float | None:
    seconds = [step.get("seconds/step") for step in logged_objects(folder / "metrics.jsonl")]
    seconds += [validation.get("seconds") for validation in logged_objects(folder / "validation.jsonl")]
    return sum(second or 0.0 for second in seconds) / 60 if seconds else None


def _objective(reward: RewardConfig) -> str:
    """What the runs of a sweep are compared by; values less different prices are not comparable."""
    return f"{reward.signal} less {reward.search_price:g} a search" if reward.search_price else reward.signal


def _state(run: SweepRun) -> str:
    if run.is_trained:
        return "evaluated" if run.is_evaluated else "trained"
    records = logged_objects(run.folder / "metrics.jsonl")
    last = int(records[-1]["step"]) if records else 0
    return f"step {last} of {run.config.train.steps}" if run.is_started else "not started"


def _final_scores(environment: str, path: Path) -> dict[str, float | None]:
    """The trained policy in a final evaluation, at the turn that its users get: mean, 95 % interval, and the mean of
    the raw question."""
    results = parse_json(path.read_text(encoding="utf-8"))
    systems = {(row["system"], row["turn"]): row for row in results["systems"]}
    last = max(turn for system, turn in systems if system == TRAINED)
    trained, raw = systems[TRAINED, results["turn"] or last], systems[RAW, 0]
    metric = next(iter(trained["metrics"]))
    name = " ".join(filter(None, (environment, results["split"], metric)))
    return {
        name: trained["metrics"][metric],
        f"{name} low": trained["low"],
        f"{name} high": trained["high"],
        f"{name} raw": raw["metrics"][metric],
    }


def _as_markdown(name: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
    """The table with a headline; the run with the best validation is bold, if all are validated by one metric."""
    validations = [column for column in columns if column.startswith(_VALIDATION)]
    scores = [(value, row["run"]) for row in rows if isinstance(value := row.get("".join(validations)), float)]
    best = max(scores)[1] if scores else None
    body = [
        [f"**{best}**" if column == "run" and row["run"] == best else _cell(row.get(column)) for column in columns]
        for row in rows
    ]
    done = sum(row["state"] in ("trained", "evaluated") for row in rows)
    headline = f"{name}: {done} of {len(rows)} runs are trained."
    if best is not None:
        headline += f" Best validation: {best}."
    return "\n".join([headline, "", *markdown_table(columns, body)]) + "\n"


def _cell(value: str | float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
