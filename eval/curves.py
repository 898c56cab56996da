"""Training curves of one or several runs.

Runs that differ only in their seed (and in settings that do not affect learning) form a *group*: at every step that all
of them have reached, a figure shows the mean over seeds and a band from the lowest to the highest. Running and stopped
runs are read like finished ones; an incomplete last line is ignored.
"""

import base64
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import pandas as pd

from ..configs.load import among, flat, free_to_change, load_run_config
from ..configs.schema import RunConfig
from ..errors import ConfigError, DataError
from ..storage import logged_objects, write_text
from .records import RECORDS, TRAINED, read_records
from .results import RESULTS, EvalResults, Example, Examples, Side, read_results
from .table import Arm, decimal
from .text import Drawing, html

SAME = ("name", "output", "seed")
"""Settings in which the runs of a group may differ, besides those that do not affect learning."""
FIGURES = (
    ("Reward", "reward", "mean reward"),
    ("Best of a group", "best_of_group", "mean of the best value"),
    ("Answers in the requested format", "format", "share of answers"),
    ("Answers cut at the token limit", "truncated", "share of answers"),
    ("Length of thinking", "think_tokens", "tokens"),
    ("Length of rewrites", "rewrite_tokens", "tokens"),
    ("Entropy", "entropy", "nats per sampled token"),
    ("Groups without signal", "zero_variance", "share of groups"),
    ("Rewrites that repeat the question or a turn", "copy", "share of rewrites"),
    ("Spread of advantages", "advantage_spread", "standard deviation"),
    ("Distance to the reference", "kl", "KL (k3), nats per token"),
    ("Time of a step", "seconds/step", "seconds"),
    ("Peak memory", "memory/peak_gib", "GiB"),
)
"""Title, key in metrics.jsonl (one panel per KEY/turnN, or one for KEY), unit."""
SIDE_BY_SIDE = 12
"""Questions that the policies of several runs are compared on."""
PANEL_WIDTH, PANEL_HEIGHT = 4.4, 2.4
"""Inches."""
COLOURS, DASHES = 10, ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The training run in a run folder: its config and logs, indexed by step."""

    path: Path
    config: RunConfig
    metrics: pd.DataFrame
    validation: pd.DataFrame


Groups = dict[str, list[TrainingRun]]
"""Runs of one configuration, one per seed, by label."""


def write_report(paths: Sequence[Path], output: Path | None) -> Path:
    """Write the page about the runs in `paths`, their curves and their evaluations, and return its path.

    The default path is training.html in the run folder, or in the common parent folder of several runs. Raises
    ConfigError for a folder without a run, DataError if no run has logged a step.
    """
    runs = [read_run(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    if all(run.metrics.empty for run in runs):
        raise DataError(f"{', '.join(map(str, paths))}: no step was logged yet; there is no curve to draw.")
    target = output or Path(os.path.commonpath([run.path for run in runs])) / "training.html"
    groups = grouped(runs)
    title = " · ".join(groups) if len(groups) < 4 else f"{len(groups)} configurations"
    evaluated = [run for run in runs if (run.path / RESULTS).is_file()]
    evaluations = [read_results(run.path) for run in evaluated]
    if len(evaluated) > 1 and (compared := side_by_side([run.path for run in evaluated], evaluations)):
        evaluations[0].examples.insert(0, compared)
    write_text(target, html(title, evaluations, draw(groups), progress(runs)))
    return target


def side_by_side(runs: Sequence[Path], evaluations: Sequence[EvalResults]) -> Examples | None:
    """What the trained policies of several runs write for the same questions, evenly spaced by id; None without
    questions that all of them have a score for. The change is that of the last run over the first."""
    answers, metric = [], evaluations[0].metrics[0]
    for run, results in zip(runs, evaluations, strict=True):
        last = results.last(TRAINED)
        of_policy = [record for record in read_records(run / RECORDS) if last == Arm(record.system, record.turn)]
        scored = (record for record in of_policy if record.sample == 0 and record.metrics.get(metric) is not None)
        answers.append({record.question_id: record for record in scored})
    common = sorted(set.intersection(*map(set, answers)))
    rows = []
    for name in common[:: ceil(len(common) / SIDE_BY_SIDE) or 1]:
        records = [answer[name] for answer in answers]
        sides = [Side(entry.rewrites, entry.metrics[metric], entry.format_ok, ()) for entry in records]
        change = (sides[-1].score or 0.0) - (sides[0].score or 0.0)
        rows.append(Example(records[0].display_text, change, sides, ()))
    rule = f"{len(rows)} of {len(common)} common questions, evenly spaced; each policy in its own environment."
    names = [run.name for run in runs]
    return Examples("The same questions, as each policy asks them", names, rule, rows, []) if rows else None


def read_run(path: Path) -> TrainingRun:
    """Read a run folder, finished or not. Raises ConfigError."""
    if not (path / "config.yaml").is_file():
        raise ConfigError(f"{path} is no run folder: it holds no config.yaml. Give one that `querylect train` wrote.")
    config = load_run_config(path, trust=True)
    return TrainingRun(path, config, *(read_log(path / name) for name in ("metrics.jsonl", "validation.jsonl")))


def read_log(path: Path) -> pd.DataFrame:
    """A log by step, in their order; of a step that a resumed run logged twice, the last line counts."""
    rows = {int(row["step"]): row for row in logged_objects(path) if "step" in row}
    frame = pd.DataFrame([rows[step] for step in sorted(rows)], index=pd.Index(sorted(rows), name="step"))
    return frame.apply(pd.to_numeric, errors="coerce").replace([float("inf"), float("-inf")], float("nan"))


def grouped(runs: Sequence[TrainingRun]) -> Groups:
    """Group runs by configuration, in input order; the label is the first run's name, and how many more there are."""
    by_settings: dict[tuple[str, ...], list[TrainingRun]] = {}
    for run in runs:
        free = (*SAME, *free_to_change(run.config.train))
        settings = flat(run.config.model_dump(mode="json"))
        key = tuple(f"{name} {value}" for name, value in settings if not among(name, free))
        by_settings.setdefault(key, []).append(run)
    groups: Groups = {}
    for members in by_settings.values():
        label = members[0].path.name + (f" and {len(members) - 1} more" if len(members) > 1 else "")
        groups[label if label not in groups else f"{label} ({len(groups) + 1})"] = members
    return groups


def progress(runs: Sequence[TrainingRun]) -> pd.DataFrame:
    """How far each run is, as text."""
    turns = sorted({turn for run in runs for turn in _turns(run.metrics, "reward")})
    rows = []
    for run in runs:
        tenth = run.metrics.tail(max(1, len(run.metrics) // 10))
        steps = f"{run.metrics.index.max() if len(run.metrics) else 0} of {run.config.train.steps}"
        finished = "" if (run.path / "final").is_dir() else ", not finished"
        rewards = {f"reward, turn {turn}": _mean(tenth, f"reward/turn{turn}") for turn in turns}
        key = f"{_signal(run)}/turn{len(run.config.rollout.branching)}"
        judged = run.validation[key].dropna() if key in run.validation else pd.Series(dtype=float)
        best = "–" if judged.empty else f"{judged.max():.3f} at step {judged.idxmax()}"
        row = {"run": run.path.name, "seed": str(run.config.seed), "steps": steps + finished, **rewards}
        rows.append({**row, "best validation": best, "s/step": _mean(run.metrics, "seconds/step", 1)})
    return pd.DataFrame(rows)


def draw_run(run: Path) -> list[Drawing]:
    """The curves of one run folder, for the page of its evaluation."""
    return draw({"": [read_run(run)]})


def draw(groups: Groups) -> list[Drawing]:
    """The figures that have data; one validation figure per reward metric of the runs."""
    figures = []
    for signal in dict.fromkeys(run.config.reward.signal for runs in groups.values() for run in runs):
        same = {
            label: [run.validation for run in runs] if runs[0].config.reward.signal == signal else []
            for label, runs in groups.items()
        }
        figures.append(("Validation, greedy", signal.partition("@")[0], f"mean {signal}", same, False))
    metrics = {label: [run.metrics for run in runs] for label, runs in groups.items()}
    figures += [(*figure, metrics, True) for figure in FIGURES]
    return [drawing for figure in figures if (drawing := draw_curves(*figure)) is not None]


def curve_of(logs: Sequence[pd.DataFrame], column: str) -> pd.DataFrame:
    """Mean, low and high over seeds at every step that all logs with values have; empty without any."""
    seeds = [log[column].dropna() for log in logs if column in log]
    table = pd.concat([seed for seed in seeds if len(seed)] or [pd.Series(dtype=float)], axis=1, join="inner")
    return pd.DataFrame({"mean": table.mean(axis=1), "low": table.min(axis=1), "high": table.max(axis=1)})


def draw_curves(
    title: str, key: str, unit: str, groups: dict[str, list[pd.DataFrame]], smoothed: bool = True
) -> Drawing | None:
    """Draw a figure: a panel per turn, a colour per group, a band over its seeds; None without data.

    `smoothed` curves are centred moving averages over a tenth of the steps.
    """
    import matplotlib
    from matplotlib.figure import Figure

    turns = sorted({turn for logs in groups.values() for log in logs for turn in _turns(log, key)})
    captions = []
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "querylect", "font.family": "sans-serif"}):
        canvas = Figure(figsize=(PANEL_WIDTH * max(1, len(turns)), PANEL_HEIGHT), layout="constrained")
        for place, turn in enumerate(turns, start=1):
            panel = canvas.add_subplot(1, len(turns), place, sharey=canvas.axes[0] if canvas.axes else None)
            for number, (label, logs) in enumerate(groups.items()):
                curve = curve_of(logs, f"{key}/turn{turn}" if turn else key)
                if curve.empty:
                    continue
                tenth = max(1, len(curve) // 10)
                smooth = curve.rolling(tenth | 1, center=True, min_periods=1).mean() if smoothed else curve
                colour, dash = f"C{number % COLOURS}", DASHES[number // COLOURS % len(DASHES)]
                marker = "" if smoothed and len(curve) > 1 else "o"
                panel.fill_between(curve.index, smooth["low"], smooth["high"], color=colour, alpha=0.18, linewidth=0)
                panel.plot(curve.index, smooth["mean"], dash, color=colour, marker=marker, markersize=3.5, label=label)
                ends = f"{curve['mean'].head(tenth).mean():.3g} → {curve['mean'].tail(tenth).mean():.3g}"
                captions.append(" ".join(filter(None, (label, f"turn {turn}" if turn else "", ends))))
            panel.set(title=f"turn {turn}" if turn else "", xlabel="step", ylabel=unit if place == 1 else "")
            panel.grid(axis="y", linewidth=0.6)
        if len(groups) > 1 and captions:
            legend = canvas.legend(*canvas.axes[0].get_legend_handles_labels(), loc="outside right upper")
            for text in legend.get_texts():
                text.set_parse_math(False)
        image = io.BytesIO()
        canvas.savefig(image, format="svg", metadata={"Date": None})
    encoded = base64.b64encode(image.getvalue()).decode()
    return Drawing(title, f"{', '.join(captions)}.", f"data:image/svg+xml;base64,{encoded}") if captions else None


def _signal(run: TrainingRun) -> str:
    """The key of its reward in the log of validations."""
    return run.config.reward.signal.partition("@")[0]


def _turns(log: pd.DataFrame, key: str) -> list[int]:
    """The turns that a figure was logged for; [0] if it was logged once per step; empty if it was not logged."""
    matches = (re.fullmatch(rf"{re.escape(key)}/turn(\d+)", column) for column in log.columns)
    return sorted(int(match[1]) for match in matches if match) or ([0] if key in log.columns else [])


def _mean(log: pd.DataFrame, column: str, digits: int = 3) -> str:
    return decimal(float(log[column].mean()) if column in log and log[column].notna().any() else None, digits)
