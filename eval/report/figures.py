"""Training curves as images: a panel per turn, a colour per configuration, a band over seeds."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_WIDTH, PANEL_HEIGHT = 4.4, 2.4
"""Inches."""
COLOURS, DASHES = 10, ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True)
class CurveFigure:
    """One figure and the source of its values."""

    title: str
    name: str
    """Key in the log: one panel per NAME/turnN, or one for NAME. For validation it is the metric of each run."""
    unit: str
    source: Literal["metrics", "validation"] = "metrics"


@dataclass(frozen=True, slots=True)
class Curve:
    """One group's values at one turn: mean, minimum and maximum over seeds at every step that all seeds have."""

    group: int
    turn: int
    steps: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    seeds: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished figure."""

    title: str
    caption: str
    image: str
    """An SVG as a data: URL."""


VALIDATION = CurveFigure("Validation, greedy", "", "", "validation")
FIGURES = (
    CurveFigure("Reward", "reward", "mean reward"),
    CurveFigure("Best of a group", "best_of_group", "mean of the best value"),
    CurveFigure("Answers in the asked format", "format", "share of answers"),
    CurveFigure("Answers cut at the token limit", "truncated", "share of answers"),
    CurveFigure("Length of thinking", "think_tokens", "tokens"),
    CurveFigure("Length of rewrites", "rewrite_tokens", "tokens"),
    CurveFigure("Entropy", "entropy", "nats per sampled token"),
    CurveFigure("Groups without signal", "zero_variance", "share of groups"),
    CurveFigure("Rewrites that repeat the question or a turn", "copy", "share of rewrites"),
    CurveFigure("Spread of advantages", "advantage_spread", "standard deviation"),
    CurveFigure("Distance to the reference", "kl", "KL (k3), nats per token"),
    CurveFigure("Time of a step", "seconds/step", "seconds"),
    CurveFigure("Peak memory", "memory/peak_gib", "GiB"),
)


def draw_curves(figure: CurveFigure, curves: Sequence[Curve], labels: Sequence[str]) -> Drawing:
    """Draw the curves of one figure. `labels` are the names of the groups."""
    import matplotlib
    from matplotlib.figure import Figure

    turns = sorted({curve.turn for curve in curves})
    image = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "querylect", "font.family": "sans-serif"}):
        canvas = Figure(figsize=(PANEL_WIDTH * len(turns), PANEL_HEIGHT), layout="constrained")
        panels = canvas.subplots(1, len(turns), sharey=True, squeeze=False)[0]
        for panel, turn in zip(panels, turns, strict=True):
            for curve in curves:
                if curve.turn == turn:
                    _draw(panel, curve, labels[curve.group], figure.source == "validation")
            panel.set_title(f"turn {turn}" if turn else "", fontsize=10, loc="left")
            panel.set_xlabel("step")
            panel.grid(axis="y", linewidth=0.6)
        panels[0].set_ylabel(figure.unit)
        if len(labels) > 1:
            legend = canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
            for text in legend.get_texts():
                text.set_parse_math(False)
        canvas.savefig(image, format="svg", metadata={"Date": None})
    encoded = base64.b64encode(image.getvalue()).decode()
    return Drawing(figure.title, _caption(curves, labels), f"data:image/svg+xml;base64,{encoded}")


def _draw(panel: "Axes", curve: Curve, label: str, validation: bool) -> None:
    colour, dash = f"C{curve.group % COLOURS}", DASHES[curve.group // COLOURS % len(DASHES)]
    window = 1 if validation else max(1, len(curve.steps) // 10) | 1
    if curve.seeds > 1:
        low, high = smooth(curve.low, window), smooth(curve.high, window)
        panel.fill_between(curve.steps, low, high, color=colour, alpha=0.18, linewidth=0)
    elif window > 1:
        panel.plot(curve.steps, curve.mean, color=colour, alpha=0.25, linewidth=0.8)
    marker = "o" if validation or len(curve.steps) == 1 else ""
    panel.plot(curve.steps, smooth(curve.mean, window), dash, color=colour, marker=marker, markersize=3.5, label=label)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centred moving average over `window` values (odd); the window is truncated at both ends."""
    half = window // 2
    parts = [values[max(0, index - half) : index + half + 1] for index in range(len(values))]
    return [math.fsum(part) / len(part) for part in parts]


def _caption(curves: Sequence[Curve], labels: Sequence[str]) -> str:
    """Means over the first and the last tenth of every curve's steps."""
    ranges: dict[str, list[str]] = {}
    for curve in curves:
        edge = max(1, len(curve.mean) // 10)
        first, last = (sum(part) / edge for part in (curve.mean[:edge], curve.mean[-edge:]))
        turn_label = f"turn {curve.turn} " if curve.turn else ""
        ranges.setdefault(labels[curve.group], []).append(f"{turn_label}{first:.3g} → {last:.3g}")
    several = len(labels) > 1
    return "; ".join((f"{label}: " if several else "") + ", ".join(parts) for label, parts in ranges.items()) + "."
