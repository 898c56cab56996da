"""Training curves as inline SVG that follows the page's colours.

The drawings are made with matplotlib and then rewritten: colours become CSS variables (`--ink`, `--line`,
`--series-1` …), so that a drawing works on light and dark pages, and ids get a prefix, so that they are unique on a
page.
"""

import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg", force=False)
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...errors import DataError

INK, LINE = "#010101", "#020202"
SERIES = tuple(f"#03030{number}" for number in range(1, 9))
"""Placeholder colours that `inline` replaces with the page's CSS variables."""
_VARIABLES = {
    INK: "var(--ink)",
    LINE: "var(--line)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)},
}
DASHES = ("-", "--", "-.", ":")
_WIDTH, _HEIGHT = 5.2, 2.9
"""Inches; the page scales the drawing to its column."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot: its title and the keys that it draws."""

    id: str
    title: str
    keys: Mapping[str, str]
    """Key in metrics.jsonl → name in the legend."""
    unit: str
    share: bool = False
    """Whether values are shares; the axis then covers 0 to 1."""
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished figure."""

    title: str
    caption: str
    svg: str


def _turns(prefix: str) -> dict[str, str]:
    return {f"{prefix}/turn{turn}": f"turn {turn}" for turn in (1, 2, 3, 4)}


PLOTS = (
    Plot("reward", "Reward per turn", _turns("reward"), "mean reward"),
    Plot("ndcg", "nDCG@10 per turn", _turns("ndcg"), "mean nDCG@10"),
    Plot("think", "Length of thinking", _turns("think_tokens"), "tokens"),
    Plot("rewrite", "Length of rewrites", _turns("rewrite_tokens"), "tokens"),
    Plot("variance", "Groups without variance", _turns("zero_variance"), "share of groups", share=True),
    Plot("format", "Answers in the asked format", _turns("format"), "share of answers", share=True),
    Plot("entropy", "Entropy of the policy", {"entropy": "entropy"}, "nats per token"),
    Plot(
        "seconds",
        "Seconds per training step",
        {f"seconds/{part}": part for part in ("generate", "retrieve", "score", "update")},
        "seconds",
        stacked=True,
    ),
)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl, one object per training step, in the order of steps.

    If a step was logged twice, by a run that was stopped and resumed, its last line counts. An incomplete last line is
    ignored: the run is writing it or died doing so. Raises DataError if any other line is not an object with a `step`.
    """
    steps: dict[int, dict[str, Any]] = {}
    try:
        complete, _, _ = path.read_bytes().rpartition(b"\n")
        lines = complete.decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"training metrics {path} cannot be read ({error}).") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            steps[int(row["step"])] = row
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f'{path}, line {number}: expected a JSON object with a "step", found {line[:80]!r}.'
            ) from error
    return [steps[step] for step in sorted(steps)]


def draw_training(metrics: Sequence[Mapping[str, Any]]) -> list[Drawing]:
    """Draw all plots that the metrics have values for, as inline SVG; missing keys are skipped."""
    return [drawing for plot in PLOTS if (drawing := draw(plot, metrics)) is not None]


def draw(plot: Plot, metrics: Sequence[Mapping[str, Any]]) -> Drawing | None:
    """Draw one plot; None if the metrics have none of its keys."""
    series_by_name = {name: series for key, name in plot.keys.items() if (series := _series(metrics, key))}
    if not series_by_name:
        return None
    with page_style():
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        window = 1
        if plot.stacked:
            _stack(axes, series_by_name)
        else:
            window = max(_lines(axes, series_by_name), window)
        dress(axes, plot.unit, ticks=9)
        if plot.share:
            axes.set_ylim(-0.03, 1.03)
        elif min(value for series in series_by_name.values() for _, value in series) >= 0:
            axes.set_ylim(bottom=0)
        if len(series_by_name) > 1:
            figure.legend(loc="outside upper left", frameon=False, ncols=4, handlelength=2.2, borderaxespad=0.2)
        caption = _caption(plot, series_by_name, window)
        return Drawing(plot.title, caption, svg_of(figure, plot.id, f"{plot.title}. {caption}"))


def page_style() -> AbstractContextManager[None]:
    """Matplotlib settings for this block: placeholder colours, and SVG text that stays text."""
    inked = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    style = {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "axes.edgecolor": LINE, **inked}
    return matplotlib.rc_context(style)


def dress(axes: Any, unit: str, ticks: int) -> None:
    """Style axes over training steps, with about `ticks` tick marks."""
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, integer=True))


def svg_of(figure: Figure, name: str, label: str) -> str:
    """The drawing as an <svg> element. `name` must be unique on the page; `label` is the accessible description."""
    svg = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return inline(svg.getvalue(), name, label)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centred moving average over `window` values (odd); the window is truncated at both ends."""
    half = window // 2
    parts = [values[max(0, index - half) : index + half + 1] for index in range(len(values))]
    return [math.fsum(part) / len(part) for part in parts]


def _series(metrics: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    """(step, value) of every row whose value is a finite number."""
    return [
        (int(row["step"]), float(value))
        for row in metrics
        if isinstance(value := row.get(key), int | float) and math.isfinite(value)
    ]


def _lines(axes: Any, series_by_name: Mapping[str, list[tuple[int, float]]]) -> int:
    """Light raw points and a smoothed line for each series; returns the widest smoothing window."""
    widest = 1
    for colour, dash, (name, series) in zip(SERIES, DASHES, series_by_name.items(), strict=False):
        steps, values = zip(*series, strict=True)
        window = max(1, len(series) // 10) | 1
        widest = max(widest, window)
        axes.plot(steps, values, "o", color=colour, alpha=0.35, markersize=3, markeredgewidth=0)
        axes.plot(steps, smooth(values, window), dash, color=colour, linewidth=2, label=name)
    return widest


def _stack(axes: Any, series_by_name: Mapping[str, list[tuple[int, float]]]) -> None:
    steps = sorted({step for series in series_by_name.values() for step, _ in series})
    columns = [[dict(series).get(step, 0.0) for step in steps] for series in series_by_name.values()]
    axes.stackplot(
        steps, columns, colors=SERIES[: len(series_by_name)], labels=list(series_by_name), alpha=0.85, linewidth=0
    )


def _caption(plot: Plot, series_by_name: Mapping[str, list[tuple[int, float]]], window: int) -> str:
    parts = []
    for name, series in series_by_name.items():
        edge = max(1, len(series) // 10)
        first, last = (math.fsum(v for _, v in part) / edge for part in (series[:edge], series[-edge:]))
        parts.append(f"{name}: {first:.3g} → {last:.3g}")
    text = "; ".join(parts) + " (first and last tenth of the steps)."
    if plot.stacked:
        return text
    return text + (f" Points: single steps; line: mean over {window} steps." if window > 1 else "")


def inline(svg: str, prefix: str, label: str) -> str:
    """Reduce matplotlib's SVG file to an <svg> element that can be embedded in a page beside others."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r"font-family: [^;\"]+", "font-family: var(--sans)", svg)
    escaped = label.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    svg = re.sub(r'\s(width|height)="[\d.]+pt"', "", svg, count=2)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escaped}"', 1).strip()
