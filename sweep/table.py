"""The table of a sweep: what each run changed, how far it is, its validation, its final evaluation, its minutes.

Read from the run folders alone, so that it can be written at any time, also of runs on a cluster.
"""

from collections.abc import Mapping
from csv import DictWriter
from io import StringIO
from pathlib import Path

from ..configs.evaluation import RAW
from ..eval.records import TRAINED
from ..eval.results import EvalResults, read_results
from ..eval.table import Arm
from ..markdown_tables import markdown_table
from ..rollouts.checkpoints import best_record, best_value
from ..storage import logged_objects, write_text
from .runs import SweepPlan, SweepRun, text_of

_VALIDATION = "best validation "
"""Beginning of the columns with the best validation, of which there is one for each metric."""

Row = dict[str, str | float | None]


def write_table(plan: SweepPlan, failed: Mapping[str, int]) -> tuple[Path, list[str]]:
    """Write sweep.csv; returns its path, and the table in Markdown, where the run with the best validation is bold, if
    all are validated by one metric. `failed` has the exit codes of runs that have failed just now."""
    rows = [_row(run, failed.get(run.name)) for run in plan.runs]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = StringIO()
    writer = DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path = plan.folder / "sweep.csv"
    write_text(path, file.getvalue())
    validation = [column for column in columns if column.startswith(_VALIDATION)]
    if len(validation) == 1:
        scores = [value for row in rows if isinstance(value := row.get(validation[0]), float)]
        for row in rows:
            if scores and row.get(validation[0]) == max(scores):
                row["run"] = f"**{row['run']}**"
    return path, markdown_table(columns, [[_cell(row.get(column)) for column in columns] for row in rows])


def _row(run: SweepRun, exit_code: int | None) -> Row:
    reward, record = run.config.reward, best_record(run.folder)
    overrides = {key: text_of(value) for key, value in run.overrides.items()}
    row: Row = {"run": run.name, **overrides, "state": _state(run, exit_code)}
    if record is not None:
        price = f" less {reward.search_price:g} a search" if reward.search_price else ""
        best = best_value(record, reward.objective, len(run.config.rollout.branching))
        row |= {f"{_VALIDATION}{reward.signal}{price}": best, "step": int(record["step"] or 0)}
    if run.is_evaluated:
        row |= _final_scores(read_results(run.folder))
    seconds = [step.get("seconds/step") for step in logged_objects(run.folder / "metrics.jsonl")]
    seconds += [validation.get("seconds") for validation in logged_objects(run.folder / "validation.jsonl")]
    return {**row, "minutes": sum(second or 0.0 for second in seconds) / 60 if seconds else None}


def _state(run: SweepRun, exit_code: int | None) -> str:
    if exit_code is not None:
        return f"failed (exit code {exit_code})"
    if run.is_trained:
        return "evaluated" if run.is_evaluated else "trained"
    steps = [int(record["step"]) for record in logged_objects(run.folder / "metrics.jsonl")]
    return f"step {max(steps, default=0)} of {run.config.train.steps}" if run.is_started else "not started"


def _final_scores(results: EvalResults) -> Row:
    """The trained policy in each environment, at the turn that its users get: mean, 95 % interval, and the mean of the
    raw question."""
    row: Row = {}
    for environment in results.environments:
        scores = {score.arm: score for score in results.scores if score.environment == environment}
        trained = scores[Arm(TRAINED, results.turn or max(arm.turn for arm in scores if arm.system == TRAINED))]
        low, high = trained.interval or (None, None)
        place = [environment] if len(results.environments) > 1 else []
        name = " ".join([*place, results.split, results.metrics[0]])
        row |= {name: trained.mean, f"{name} low": low, f"{name} high": high, f"{name} raw": scores[Arm(RAW, 0)].mean}
    return row


def _cell(value: str | float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
