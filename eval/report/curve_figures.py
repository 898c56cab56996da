"""Figures of the curves page: a panel per turn, a colour per configuration, a band over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from ..pages.figures import DASHES, SERIES, Drawing, dress, page_style, smooth, svg_of

PANEL_WIDTH, PANEL_HEIGHT = 4.4, 2.4
"""Inches; the page scales a drawing to its column."""


@dataclass(frozen=True, slots=True)
class CurveFigure:
    """One figure and the source of its values."""

    id: str
    title: str
    name: str
    """Key in the log: one panel per NAME/turnN, or one for NAME. For validation it is the metric of each run."""
    unit: str
    source: Literal["metrics", "validation"] = "metrics"
    share: bool = False
    """Whether values are shares; the axis then covers 0 to 1."""
    from_zero: bool = True
    """Whether the axis starts at 0. Not for rewards: their range is too narrow for that."""
    optional: bool = False
    """Whether the figure is left out where every value is 0: a policy that does not think has no length of thinking."""


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


FIGURES = (
    CurveFigure("reward", "Reward", "reward", "mean reward", from_zero=False),
    CurveFigure("validation", "Validation, greedy", "", "", source="validation", from_zero=False),
    CurveFigure("best", "Best of a group", "best_of_group", "mean of the best value", from_zero=False),
    CurveFigure("format", "Answers in the asked format", "format", "share of answers", share=True),
    CurveFigure("cut", "Answers cut at the token limit", "truncated", "share of answers", share=True),
    CurveFigure("think", "Length of thinking", "think_tokens", "tokens", optional=True),
    CurveFigure("rewrite", "Length of rewrites", "rewrite_tokens", "tokens"),
    CurveFigure("entropy", "Entropy", "entropy", "nats per sampled token"),
    CurveFigure("variance", "Groups without signal", "zero_variance", "share of groups", share=True),
    CurveFigure("copy", "Rewrites that repeat the question or a turn", "copy", "share of rewrites", share=True),
    CurveFigure("spread", "Spread of advantages", "advantage_spread", "standard deviation"),
    CurveFigure("kl", "Distance to the reference", "kl", "KL (k3), nats per token"),
    CurveFigure("seconds", "Time of a step", "seconds/step", "seconds"),
    CurveFigure("memory", "Peak memory", "memory/peak_gib", "GiB"),
)

_OF_A_RUN = ("validation", "reward", "copy", "format", "cut", "rewrite", "think", "entropy", "variance", "seconds")
RUN_FIGURES = tuple(figure for name in _OF_A_RUN for figure in FIGURES if figure.id == name)
"""The figures on the page of an evaluated run."""


def draw_curves(figure: CurveFigure, curves: Sequence[Curve], labels: Sequence[str]) -> Drawing:
    """Draw the curves of one figure as inline SVG in the page's colours. `labels` are the names of the groups."""
    turns = sorted({curve.turn for curve in curves})
    caption = _caption(curves, labels, max(_window(figure.source, curve) for curve in curves))
    svgs = []
    with page_style():
        canvases = [Canvas(figsize=(PANEL_WIDTH, PANEL_HEIGHT), layout="constrained") for _ in turns]
        panels = [canvas.add_subplot() for canvas in canvases]
        for panel, turn in zip(panels, turns, strict=True):
            _panel(panel, figure, [curve for curve in curves if curve.turn == turn], titled=len(turns) > 1)
        ends = [panel.get_ylim() for panel in panels]
        low, high = min(end[0] for end in ends), max(end[1] for end in ends)
        if figure.share:
            low, high = -0.03, 1.03
        elif figure.from_zero and min(min(curve.low) for curve in curves) >= 0:
            low = 0.0
        for canvas, panel, turn in zip(canvases, panels, turns, strict=True):
            panel.set_ylim(low, high)
            turn_label = f", turn {turn}" if turn else ""
            svgs.append(svg_of(canvas, f"curves-{figure.id}-{turn}", f"{figure.title}{turn_label}. {caption}"))
    return Drawing(figure.title, caption, svgs)


def _window(figure_source: str, curve: Curve) -> int:
    """Smoothing window in steps: a tenth of the curve, made odd; 1 for validation."""
    return 1 if figure_source == "validation" else max(1, len(curve.steps) // 10) | 1


def _panel(panel: Axes, figure: CurveFigure, curves: Sequence[Curve], titled: bool) -> None:
    """One turn's curves."""
    for curve in curves:
        colour, dash = SERIES[curve.group % len(SERIES)], DASHES[curve.group // len(SERIES) % len(DASHES)]
        window = _window(figure.source, curve)
        if curve.seeds > 1:
            low, high = smooth(curve.low, window), smooth(curve.high, window)
            panel.fill_between(curve.steps, low, high, color=colour, alpha=0.18, linewidth=0)
        elif window > 1:
            panel.plot(curve.steps, curve.mean, color=colour, alpha=0.25, linewidth=0.8, clip_on=False)
        marker = "o" if figure.source == "validation" or len(curve.steps) == 1 else ""
        panel.plot(
            curve.steps,
            smooth(curve.mean, window),
            dash,
            color=colour,
            linewidth=1.8,
            marker=marker,
            markersize=3.5,
            clip_on=False,
        )
    if titled:
        panel.set_title(f"turn {curves[0].turn}", fontsize=10, loc="left")
    dress(panel, figure.unit)


def _caption(curves: Sequence[Curve], labels: Sequence[str], window: int) -> str:
    """Means over the first and the last tenth of every curve's steps."""
    ranges: dict[str, list[str]] = {}
    for curve in curves:
        edge = max(1, len(curve.mean) // 10)
        first, last = (sum(part) / edge for part in (curve.mean[:edge], curve.mean[-edge:]))
        turn_label = f"turn {curve.turn} " if curve.turn else ""
        ranges.setdefault(labels[curve.group], []).append(f"{turn_label}{first:.3g} → {last:.3g}")
    several = len(labels) > 1
    text = "; ".join((f"{label}: " if several else "") + ", ".join(parts) for label, parts in ranges.items()) + "."
    return text + (f" Lines: mean over {window} steps." if window > 1 else "")
