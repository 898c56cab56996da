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
from ...storage import parse_json
from ..pages.figures import Drawing
from ..pages.templates import render_page
from ..records import now, write_text
from .curve_figures import FIGURES, RUN_FIGURES, Curve, CurveFigure, draw_curves

SAME = ("name", "output", "seed")
"""Settings in which the runs of a group may differ, besides those that do not affect learning."""
SHOWN_DIFFERENCES = 24
"""Maximum rows in the table of differing settings; further settings are listed below it."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The training run in a run folder: its config and logs."""

    path: Path
    config: RunConfig
    metrics: Sequence[Mapping[str, float]]
    validation: Sequence[Mapping[str, float]]
    finished: bool

    @property
    def settings(self) -> list[tuple[str, str]]:
        """Dotted names and values of its settings, as text."""
        return [(name, str(value)) for name, value in flat(self.config.model_dump(mode="json"))]


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Runs of one configuration, one per seed."""

    label: str
    runs: Sequence[TrainingRun]


def write_curves(paths: Sequence[Path], output: Path | None) -> Path:
    """Write the page about the runs in `paths` and return its path.

    The default path is training.html in the run folder, or in the common parent folder of several runs. Raises
    ConfigError for a folder without a run, DataError for a log that cannot be read or if no run has logged a step.
    """
    runs = [read_run(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    if not any(run.metrics for run in runs):
        message = f"{', '.join(map(str, paths))}: no step was logged yet; there is no curve to draw."
        raise DataError(message)
    above = Path(os.path.commonpath([run.path for run in runs]))
    target = output or above / "training.html"
    if target.is_dir():
        target = target / "training.html"
    write_text(target, render_curves(runs, now()))
    return target


def read_run(path: Path) -> TrainingRun:
    """Read a run folder, finished or not. Raises ConfigError and DataError."""
    config_path = path / "config.yaml"
    if not config_path.is_file():
        message = f"{path} is no run folder: it holds no config.yaml. Give one that `querylect train` wrote."
        raise ConfigError(message)
    logs = [path / "metrics.jsonl", path / "validation.jsonl"]
    metrics, validation = (read_metrics(log) if log.exists() else [] for log in logs)
    return TrainingRun(path, load_run_config(path, trust=True), metrics, validation, (path / "final").is_dir())


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read metrics.jsonl, one object per training step, in the order of steps.

    If a step was logged twice, by a run that was stopped and resumed, its last line counts. An incomplete last line is
    ignored: the run is writing it or died doing so. Raises DataError if any other line is not an object with a `step`.
    """
    steps: dict[int, dict[str, float]] = {}
    try:
        complete, _, _ = path.read_bytes().rpartition(b"\n")
        lines = complete.decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"training metrics {path} cannot be read ({error}).") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            steps[int(row["step"])] = row
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f'{path}, line {number}: expected a JSON object with a "step", found {line[:80]!r}.'
            ) from error
    return [steps[step] for step in sorted(steps)]


def render_curves(runs: Sequence[TrainingRun], created: str) -> str:
    """The page as HTML. `created` is the time, as text."""
    groups = grouped(runs)
    labels, differing = [group.label for group in groups], differences(groups)
    drawings = [draw_curves(figure, curves, labels) for figure, curves in drawn(groups)]
    return render_page(
        "curves.html.j2",
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


def draw_run(config: RunConfig, metrics: Path) -> list[Drawing]:
    """The curves of one run, for the page of its evaluation, with those of validation.jsonl beside its `metrics`.

    Raises DataError for a log that cannot be read.
    """
    validation = metrics.parent / "validation.jsonl"
    validated = read_metrics(validation) if validation.exists() else []
    group = SeedGroup("", [TrainingRun(metrics.parent, config, read_metrics(metrics), validated, finished=True)])
    return [draw_curves(figure, curves, [""]) for figure, curves in drawn([group], RUN_FIGURES)]


def drawn(
    groups: Sequence[SeedGroup], figures: Sequence[CurveFigure] = FIGURES
) -> Iterator[tuple[CurveFigure, list[Curve]]]:
    """The figures that have data, with their curves; one validation figure per reward metric of the runs."""
    metrics = [group.runs[0].config.reward.signal for group in groups]
    for figure in figures:
        if figure.source == "metrics":
            variants = [(figure, curves_of(groups, figure.name, figure.source))]
        else:
            variants = [
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
        yield from (
            (figure, curves)
            for figure, curves in variants
            if curves and not (figure.optional and not any(map(any, (curve.high for curve in curves))))
        )


def grouped(runs: Sequence[TrainingRun]) -> list[SeedGroup]:
    """Group runs by configuration, in input order."""
    by_settings: dict[tuple[tuple[str, str], ...], list[TrainingRun]] = {}
    for run in runs:
        free = (*SAME, *free_to_change(run.config.train))
        key = tuple((name, value) for name, value in run.settings if not among(name, free))
        by_settings.setdefault(key, []).append(run)
    labels: list[str] = []
    for members in by_settings.values():
        label = _label(members)
        labels.append(label if label not in labels else f"{label} ({len(labels) + 1})")
    return [SeedGroup(label, members) for label, members in zip(labels, by_settings.values(), strict=True)]


def curves_of(groups: Sequence[SeedGroup], name: str, source: str) -> list[Curve]:
    """A figure's curves, one per group and turn; the turn is 0 if `name` is logged once per step."""
    curves = []
    for index, group in enumerate(groups):
        logs = [run.metrics if source == "metrics" else run.validation for run in group.runs]
        logs = [log for log in logs if log]
        for turn in sorted({turn for log in logs for turn in _turns(log, name)}):
            key = f"{name}/turn{turn}" if turn else name
            series = [{int(row["step"]): float(row[key]) for row in log if _finite(row.get(key))} for log in logs]
            series = [values for values in series if values]
            if not series:
                continue
            steps = sorted(set.intersection(*(set(values) for values in series)))
            columns = [[values[step] for values in series] for step in steps]
            if steps:
                curve = Curve(
                    group=index,
                    turn=turn,
                    steps=steps,
                    mean=[fmean(column) for column in columns],
                    low=[min(column) for column in columns],
                    high=[max(column) for column in columns],
                    seeds=len(series),
                )
                curves.append(curve)
    return curves


def differences(groups: Sequence[SeedGroup]) -> list[tuple[str, list[str]]]:
    """The settings in which groups differ, each with its values by group."""
    runs = [group.runs[0] for group in groups]
    values = [dict(run.settings) for run in runs]
    every = sorted({name for settings in values for name in settings})
    free = [(*SAME, *free_to_change(run.config.train)) for run in runs]
    names = [name for name in every if not all(among(name, sections) for sections in free)]
    rows = [(name, [settings.get(name, "–") for settings in values]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _row(number: int, group: SeedGroup, run: TrainingRun) -> dict[str, object]:
    """A run's row in the table, with numbers as text."""
    tenth = run.metrics[-max(1, len(run.metrics) // 10) :]
    last = run.metrics[-1]["step"] if run.metrics else 0
    key = f"{run.config.reward.signal.split('@')[0]}/turn{len(run.config.rollout.branching)}"
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
    """The run's name, or the common prefix of several names."""
    names = [run.path.name for run in runs]
    if len(names) == 1:
        return names[0]
    common = os.path.commonprefix(names)  # noqa: RUF071 (letters are meant)
    common = common.rstrip("0123456789").rstrip("-_. ")
    for ending in ("seed", "-s", "_s"):
        common = common.removesuffix(ending).rstrip("-_. ")
    return common or names[0]
