"""The table of a sweep: what each run changed, how far it is, its validation, its final evaluation, its minutes.

Read from the run folders alone, so that it can be written at any time, also of runs on a cluster.
"""

import json
from collections.abc import Mapping, Sequence
from csv import DictWriter
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path

from ..configs.evaluation import RAW
from ..configs.schema import RewardConfig
from ..eval.records import TRAINED
from ..markdown_tables import markdown_table
from ..rollouts.turns import best_record, best_value
from ..storage import logged_objects, parse_json, write_text
from .runs import SweepPlan, SweepRun, text_of

_REMEDY = "Free some space and give the same command again: finished runs are not repeated."


@dataclass(frozen=True, slots=True)
class FinalScore:
    """The trained policy in a final evaluation, at the turn that its users get."""

    environment: str
    """Of a mix; else empty."""
    metric: str
    mean: float
    low: float | None
    """Of the 95 % interval."""
    high: float | None
    raw: float
    """The mean of the raw question."""
    questions: int
    split: str


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One run."""

    run: str
    overrides: Mapping[str, object]
    state: str
    folder: str
    metric: str
    """The metric of validation."""
    best_validation: float | None
    """The highest mean of the metric; None without validation."""
    best_step: int | None
    final: Sequence[FinalScore]
    minutes: float | None
    """Of training and validation; None before the first step."""


def rows_of(plan: SweepPlan, failed: Mapping[str, int]) -> list[SweepRow]:
    """The table; `failed` has the exit codes of runs that have failed just now."""
    return [_row(run, failed.get(run.name)) for run in plan.runs]


def _row(run: SweepRun, exit_code: int | None) -> SweepRow:
    config = run.config
    record = best_record(run.folder)
    best = best_value(record, config.reward.objective, len(config.rollout.branching)) if record is not None else None
    return SweepRow(
        run=run.name,
        overrides=run.overrides,
        state=_state(run) if exit_code is None else f"failed (exit code {exit_code})",
        folder=str(run.folder),
        metric=_objective(config.reward),
        best_validation=best,
        best_step=int(record["step"] or 0) if record is not None else None,
        final=[_final_score(name, path) for name, path in run.result_files.items() if path.is_file()],
        minutes=_minutes(run.folder),
    )


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
    return f"step {_last_step(run.folder)} of {run.config.train.steps}" if run.is_started else "not started"


def _last_step(folder: Path) -> int:
    """The last step in metrics.jsonl; its last line may be half written."""
    records = logged_objects(folder / "metrics.jsonl")
    return int(records[-1]["step"]) if records else 0


def _final_score(environment: str, path: Path) -> FinalScore:
    results = parse_json(path.read_text(encoding="utf-8"))
    systems = {(row["system"], row["turn"]): row for row in results["systems"]}
    last = max(turn for system, turn in systems if system == TRAINED)
    trained, raw = systems[TRAINED, results["turn"] or last], systems[RAW, 0]
    metric = next(iter(trained["metrics"]))
    return FinalScore(
        environment,
        metric,
        trained["metrics"][metric],
        trained["low"],
        trained["high"],
        raw["metrics"][metric],
        results["questions"],
        results["split"],
    )


def write_table(plan: SweepPlan, rows: Sequence[SweepRow]) -> Path:
    """Write sweep.md, sweep.csv and sweep.json and return the first. Raises StorageError."""
    content = {"sweep": plan.name, "best": best_run(rows), "runs": [asdict(row) for row in rows]}
    write_text(plan.folder / "sweep.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n", _REMEDY)
    write_text(plan.folder / "sweep.csv", as_csv(rows), _REMEDY)
    path = plan.folder / "sweep.md"
    write_text(path, as_markdown(plan.name, rows), _REMEDY)
    return path


def best_run(rows: Sequence[SweepRow]) -> str | None:
    """The run with the highest validation; None without any, or if runs are validated by different metrics."""
    validated = [(row.best_validation, row) for row in rows if row.best_validation is not None]
    if not validated or len({row.metric for _, row in validated}) > 1:
        return None
    return max(validated, key=lambda pair: pair[0])[1].run


def as_markdown(name: str, rows: Sequence[SweepRow]) -> str:
    """The table with a headline; the run with the best validation is bold."""
    best, keys = best_run(rows), list(rows[0].overrides)
    names = _score_names(rows)
    head = ["run", *keys, "state", "best validation", *names, "minutes"]
    body = []
    for row in rows:
        scores = {_score_name(score): score for score in row.final}
        body.append(
            [
                f"**{row.run}**" if row.run == best else row.run,
                *(text_of(row.overrides[key]) for key in keys),
                row.state,
                "–"
                if row.best_validation is None
                else f"{row.metric} {row.best_validation:.3f} (step {row.best_step})",
                *(_score_text(scores.get(score)) for score in names),
                "–" if row.minutes is None else f"{row.minutes:.1f}",
            ]
        )
    done = sum(row.state in ("trained", "evaluated") for row in rows)
    headline = f"{name}: {done} of {len(rows)} runs are trained."
    if best is not None:
        headline += f" Best validation: {best}."
    return "\n".join([headline, "", *markdown_table(head, body)]) + "\n"


def as_csv(rows: Sequence[SweepRow]) -> str:
    """One line per run: overrides, and the mean, interval and raw question of each final evaluation."""
    keys, names = list(rows[0].overrides), _score_names(rows)
    parts = ("mean", "low", "high", "raw", "questions")
    head = ["run", *keys, "state", "metric", "best_validation", "best_step"]
    head += [f"{name} {part}" for name in names for part in parts] + ["minutes", "folder"]
    file = StringIO()
    writer = DictWriter(file, head, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        line = {name: getattr(row, name) for name in head if name in SweepRow.__slots__}
        line |= {key: text_of(value) for key, value in row.overrides.items()}
        line |= {f"{_score_name(score)} {part}": getattr(score, part) for score in row.final for part in parts}
        writer.writerow(line)
    return file.getvalue()


def _score_names(rows: Sequence[SweepRow]) -> list[str]:
    return list(dict.fromkeys(_score_name(score) for row in rows for score in row.final))


def _score_name(score: FinalScore) -> str:
    return " ".join(filter(None, (score.environment, score.split, score.metric)))


def _score_text(score: FinalScore | None) -> str:
    if score is None:
        return "–"
    interval = f" ({score.low:.3f} to {score.high:.3f})" if score.low is not None and score.high is not None else ""
    return f"{score.mean:.3f}{interval}, raw {score.raw:.3f}"
