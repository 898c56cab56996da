"""Training curves of one or several runs on one self-contained page.

Runs that differ only in their seed (and in settings that do not affect learning) form a *group*: at every step that all
of them have reached, the page shows the mean over seeds and a band from the lowest to the highest. Running and stopped
runs are read like finished ones; an incomplete last line is ignored.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from ...configs.differences import among, flat, free_to_change
from ...configs.run_settings import load_run_config
from ...configs.schema import RunConfig
from ...errors import ConfigError, DataError
from ...storage import logged_objects, write_text
from ..records import now
from .figures import FIGURES, VALIDATION, Curve, CurveFigure, Drawing, draw_curves
from .page import render_page

SAME = ("name", "output", "seed")
"""Settings in which the runs of a group may differ, besides those that do not affect learning."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The training run in a run folder: its config and logs."""

    path: Path
    config: RunConfig
    metrics: Sequence[Mapping[str, float]]
    validation: Sequence[Mapping[str, float]]
    finished: bool


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Runs of one configuration, one per seed."""

    label: str
    runs: Sequence[TrainingRun]


def write_curves(paths: Sequence[Path], output: Path | None) -> Path:
    """Write the page about the runs in `paths` and return its path.

    The default path is training.html in the run folder, or in the common parent folder of several runs. Raises
    ConfigError for a folder without a run, DataError if no run has logged a step.
    """
    runs = [read_run(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    if not any(run.metrics for run in runs):
        message = f"{', '.join(map(str, paths))}: no step was logged yet; there is no curve to draw."
        raise DataError(message)
    target = output or Path(os.path.commonpath([run.path for run in runs]))
    if target.is_dir():
        target = target / "training.html"
    write_text(target, render_curves(runs, now()))
    return target


def read_run(path: Path) -> TrainingRun:
    """Read a run folder, finished or not. Raises ConfigError."""
    if not (path / "config.yaml").is_file():
        message = f"{path} is no run folder: it holds no config.yaml. Give one that `querylect train` wrote."
        raise ConfigError(message)
    metrics, validation = (read_metrics(path / name) for name in ("metrics.jsonl", "validation.jsonl"))
    return TrainingRun(path, load_run_config(path, trust=True), metrics, validation, (path / "final").is_dir())


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The steps of a log, in their order; of a step that a resumed run logged twice, the last line counts."""
    steps = {int(row["step"]): row for row in logged_objects(path) if "step" in row}
    return [steps[step] for step in sorted(steps)]


def render_curves(runs: Sequence[TrainingRun], created: str) -> str:
    """The page as HTML. `created` is the time, as text."""
    groups = grouped(runs)
    labels = [group.label for group in groups]
    turns = sorted({turn for run in runs for turn in _turns(run.metrics, "reward")})
    return render_page(
        "curves.html.j2",
        title=" · ".join(labels) if len(groups) < 4 else f"{len(groups)} configurations",
        head=["Run", "seed", "steps", *(f"reward, turn {turn}" for turn in turns), "best validation", "s/step"],
        rows=[_row(run, turns) for group in groups for run in group.runs],
        drawings=[draw_curves(figure, curves, labels) for figure, curves in drawn(groups)],
        created=created,
    )


def draw_run(config: RunConfig, run: Path) -> list[Drawing]:
    """The curves of one run folder, for the page of its evaluation."""
    metrics, validation = (read_metrics(run / name) for name in ("metrics.jsonl", "validation.jsonl"))
    group = SeedGroup("", [TrainingRun(run, config, metrics, validation, finished=True)])
    return [draw_curves(figure, curves, [""]) for figure, curves in drawn([group])]


def drawn(groups: Sequence[SeedGroup]) -> Iterator[tuple[CurveFigure, list[Curve]]]:
    """The figures that have data, with their curves; one validation figure per reward metric of the runs."""
    metrics = [group.runs[0].config.reward.signal for group in groups]
    for metric in dict.fromkeys(metrics):
        found = curves_of(groups, metric.partition("@")[0], "validation")
        if curves := [curve for curve in found if metrics[curve.group] == metric]:
            yield replace(VALIDATION, unit=f"mean {metric}"), curves
    for figure in FIGURES:
        if curves := curves_of(groups, figure.name, figure.source):
            yield figure, curves


def grouped(runs: Sequence[TrainingRun]) -> list[SeedGroup]:
    """Group runs by configuration, in input order."""
    by_settings: dict[tuple[tuple[str, str], ...], list[TrainingRun]] = {}
    for run in runs:
        free = (*SAME, *free_to_change(run.config.train))
        settings = flat(run.config.model_dump(mode="json"))
        by_settings.setdefault(tuple((key, str(value)) for key, value in settings if not among(key, free)), []).append(
            run
        )
    labels: list[str] = []
    for members in by_settings.values():
        label = _label(members)
        labels.append(label if label not in labels else f"{label} ({len(labels) + 1})")
    return [SeedGroup(label, members) for label, members in zip(labels, by_settings.values(), strict=True)]


def curves_of(groups: Sequence[SeedGroup], name: str, source: str) -> list[Curve]:
    """A figure's curves, one per group and turn; the turn is 0 if `name` is logged once per step."""
    curves = []
    for index, group in enumerate(groups):
        logs = [log for run in group.runs if (log := run.metrics if source == "metrics" else run.validation)]
        for turn in sorted({turn for log in logs for turn in _turns(log, name)}):
            key = f"{name}/turn{turn}" if turn else name
            series = [{int(row["step"]): float(row[key]) for row in log if _finite(row.get(key))} for log in logs]
            series = [values for values in series if values]
            steps = sorted(set.intersection(*map(set, series))) if series else []
            if not steps:
                continue
            columns = [[values[step] for values in series] for step in steps]
            mean, low, high = ([fold(column) for column in columns] for fold in (fmean, min, max))
            curves.append(Curve(index, turn, steps, mean, low, high, len(series)))
    return curves


def _row(run: TrainingRun, turns: Sequence[int]) -> list[str]:
    """A run's row in the table."""
    tenth = run.metrics[-max(1, len(run.metrics) // 10) :]
    last = run.metrics[-1]["step"] if run.metrics else 0
    key = f"{run.config.reward.signal.split('@')[0]}/turn{len(run.config.rollout.branching)}"
    judged = [row for row in run.validation if _finite(row.get(key))]
    best = max(judged, key=lambda row: row[key], default=None)
    return [
        run.path.name,
        str(run.config.seed),
        f"{last} of {run.config.train.steps}" + ("" if run.finished else ", not finished"),
        *(_mean(tenth, f"reward/turn{turn}") for turn in turns),
        "–" if best is None else f"{best[key]:.3f} at step {best['step']}",
        _mean(run.metrics, "seconds/step", "{:.1f}"),
    ]


def _mean(rows: Sequence[Mapping[str, float]], key: str, form: str = "{:.3f}") -> str:
    values = [row[key] for row in rows if _finite(row.get(key))]
    return form.format(fmean(values)) if values else "–"


def _turns(rows: Sequence[Mapping[str, object]], name: str) -> list[int]:
    """The turns that a figure was logged for; [0] if it was logged once per step; empty if it was not logged."""
    form = re.compile(rf"{re.escape(name)}(/turn\d+)?")
    ends = {key.removeprefix(name) for row in rows for key in row if form.fullmatch(key)}
    turns = sorted(int(end.removeprefix("/turn")) for end in ends if end)
    return turns or ([0] if ends else [])


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


def _label(runs: Sequence[TrainingRun]) -> str:
    """The first run's name, and how many other seeds there are."""
    return runs[0].path.name + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
