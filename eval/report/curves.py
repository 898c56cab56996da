"""Training curves of one run, or of several side by side, on one page that needs nothing from elsewhere.

Runs that differ in nothing but their seed (and in what does not change learning) are one *group*: at every step that
all of them have reached, the mean over the seeds is drawn, in a band from the lowest seed to the highest. Runs under
way and runs that were stopped are read like finished ones; a last line that is half written is left out.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from ...configs.differences import among, flat, free_to_change
from ...configs.run_settings import load_run_config
from ...configs.schema import RunConfig
from ...errors import ConfigError, DataError
from ..pages.figures import read_metrics
from ..pages.templates import page_environment
from ..records import write_text
from .curve_figures import FIGURES, Curve, CurveFigure, draw_curves

SAME = ("name", "output", "seed", "env.playground")
"""Settings in which the runs of a group may differ, besides those that do not change what a run learns."""
SHOWN_DIFFERENCES = 24
"""Settings in the table of those that differ; further ones are named below it."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a run folder says about its training."""

    path: Path
    config: RunConfig
    metrics: Sequence[Mapping[str, Any]]
    validation: Sequence[Mapping[str, Any]]
    finished: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one configuration, one per seed."""

    label: str
    runs: Sequence[TrainingRun]


def write_curves(paths: Sequence[Path], output: Path | None) -> Path:
    """Write the page about the runs in `paths` and return its path.

    By default it is training.html in the run folder, for several runs in the folder above them all. Raises ConfigError
    for a folder that holds no run, DataError for a log that cannot be read or has no step yet.
    """
    runs = [read_run(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    if not any(run.metrics for run in runs):
        raise DataError(f"{', '.join(map(str, paths))}: no step was logged yet; there is no curve to draw.")
    above = Path(os.path.commonpath([run.path for run in runs]))
    target = output or above / "training.html"
    if target.is_dir():
        target = target / "training.html"
    write_text(target, render_curves(runs, datetime.now(UTC).isoformat(sep=" ", timespec="seconds")))
    return target


def read_run(path: Path) -> TrainingRun:
    """A run folder, whatever state it is in. Raises ConfigError, DataError."""
    written = path / "config.yaml"
    if not written.is_file():
        raise ConfigError(f"{path} is no run folder: it holds no config.yaml. Give one that `querylect train` wrote.")
    logs = [path / "metrics.jsonl", path / "validation.jsonl"]
    metrics, validation = (read_metrics(log) if log.exists() else [] for log in logs)
    return TrainingRun(path, load_run_config(path), metrics, validation, (path / "final").is_dir())


def render_curves(runs: Sequence[TrainingRun], created: str) -> str:
    """The page as HTML. `created` is the time, as text."""
    groups = grouped(runs)
    labels, differing = [group.label for group in groups], differences(groups)
    drawings = [draw_curves(figure, curves, labels) for figure, curves in drawn(groups)]
    return (
        page_environment()
        .get_template("curves.html.j2")
        .render(
            title=" · ".join(group.label for group in groups) if len(groups) < 4 else f"{len(groups)} configurations",
            groups=groups,
            rows=[_row(number, group, run) for number, group in enumerate(groups, start=1) for run in group.runs],
            turns=sorted({turn for run in runs for turn in _turns(run.metrics, "reward")}),
            differences=differing[:SHOWN_DIFFERENCES],
            more_differences=[name for name, _ in differing[SHOWN_DIFFERENCES:]],
            drawings=drawings,
            validated=any(run.validation for run in runs),
            seeds=any(len(group.runs) > 1 for group in groups),
            created=created,
        )
    )


def drawn(groups: Sequence[Group]) -> Iterator[tuple[CurveFigure, list[Curve]]]:
    """The figures that there is something to draw in; validation once for each metric that runs are rewarded by."""
    metrics = [group.runs[0].config.reward.metric for group in groups]
    for figure in FIGURES:
        if figure.source == "metrics":
            found = [(figure, curves_of(groups, figure.name, figure.source))]
        else:
            found = [
                (
                    replace(figure, id=f"{figure.id}-{metric.replace('@', '-')}", unit=f"mean {metric}"),
                    [
                        curve
                        for curve in curves_of(groups, metric.partition("@")[0], figure.source)
                        if metrics[curve.group] == metric
                    ],
                )
                for metric in dict.fromkeys(metrics)
            ]
        yield from ((figure, curves) for figure, curves in found if curves)


def grouped(runs: Sequence[TrainingRun]) -> list[Group]:
    """The runs by configuration, in the order in which they were given."""
    found: dict[tuple[tuple[str, str], ...], list[TrainingRun]] = {}
    for run in runs:
        free = (*SAME, *free_to_change(run.config))
        key = tuple((name, value) for name, value in _settings(run.config) if not among(name, free))
        found.setdefault(key, []).append(run)
    labels: list[str] = []
    for members in found.values():
        label = _label(members)
        labels.append(label if label not in labels else f"{label} ({len(labels) + 1})")
    return [Group(label, members) for label, members in zip(labels, found.values(), strict=True)]


def curves_of(groups: Sequence[Group], name: str, source: str) -> list[Curve]:
    """A figure's curves, one for each group and turn; `name` without turns has turn 0."""
    curves = []
    for place, group in enumerate(groups):
        logs = [run.metrics if source == "metrics" else run.validation for run in group.runs]
        logs = [log for log in logs if log]
        for turn in sorted({turn for log in logs for turn in _turns(log, name)}):
            key = f"{name}/turn{turn}" if turn else name
            series = [{int(row["step"]): float(row[key]) for row in log if _finite(row.get(key))} for log in logs]
            series = [values for values in series if values]
            steps = sorted(set.intersection(*(set(values) for values in series)))
            columns = [[values[step] for values in series] for step in steps]
            if steps:
                curve = Curve(
                    group=place,
                    turn=turn,
                    steps=steps,
                    mean=[fmean(column) for column in columns],
                    low=[min(column) for column in columns],
                    high=[max(column) for column in columns],
                    seeds=len(series),
                )
                curves.append(curve)
    return curves


def differences(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """The settings in which groups differ, each with its value in every group."""
    configs = [group.runs[0].config for group in groups]
    values = [dict(_settings(config)) for config in configs]
    every = sorted({name for settings in values for name in settings})
    names = [name for name in every if not all(among(name, (*SAME, *free_to_change(config))) for config in configs)]
    found = [(name, [settings.get(name, "–") for settings in values]) for name in names]
    return [(name, values) for name, values in found if len(set(values)) > 1]


def _row(number: int, group: Group, run: TrainingRun) -> dict[str, Any]:
    """A run's line in the table, numbers as text."""
    tenth = run.metrics[-max(1, len(run.metrics) // 10) :]
    last = run.metrics[-1]["step"] if run.metrics else 0
    key = f"{run.config.reward.metric.split('@')[0]}/turn{len(run.config.rollout.branching)}"
    judged = [row for row in run.validation if _finite(row.get(key))]
    best = max(judged, key=lambda row: row[key], default=None)
    return {
        "group": (number - 1) % 8 + 1,
        "label": group.label,
        "name": run.path.name,
        "seed": run.config.seed,
        "steps": f"{last} of {run.config.train.steps}" + ("" if run.finished else ", not finished"),
        "rewards": {turn: _mean(tenth, f"reward/turn{turn}") for turn in _turns(run.metrics, "reward")},
        "best": "–" if best is None else f"{best[key]:.3f} at step {best['step']}",
        "seconds": _mean(run.metrics, "seconds/step", "{:.1f}"),
    }


def _mean(rows: Sequence[Mapping[str, Any]], key: str, form: str = "{:.3f}") -> str:
    values = [row[key] for row in rows if _finite(row.get(key))]
    return form.format(fmean(values)) if values else "–"


def _turns(rows: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    """The turns for which a figure was logged; [0] where it was logged once a step; none where it was not."""
    form = re.compile(rf"{re.escape(name)}(/turn\d+)?")
    ends = {key.removeprefix(name) for row in rows for key in row if form.fullmatch(key)}
    turns = sorted(int(end.removeprefix("/turn")) for end in ends if end)
    return turns or ([0] if ends else [])


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


def _settings(config: RunConfig) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in flat(config.model_dump(mode="json"))]


def _label(runs: Sequence[TrainingRun]) -> str:
    """The run's name; for several what their names begin with."""
    names = [run.path.name for run in runs]
    if len(names) == 1:
        return names[0]
    common = os.path.commonprefix(names)  # noqa: RUF071 (letters are meant)
    common = common.rstrip("0123456789").rstrip("-_. ")
    for ending in ("seed", "-s", "_s"):
        common = common.removesuffix(ending).rstrip("-_. ")
    return common or names[0]
