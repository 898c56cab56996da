"""Drawings as inline SVG that follows the page's colours.

The drawings are made with matplotlib and then rewritten: colours become CSS variables (`--ink`, `--line`,
`--series-1` …), so that a drawing works on light and dark pages, and ids get a prefix, so that they are unique on a
page.
"""

import io
import math
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, LINE = "#010101", "#020202"
SERIES = tuple(f"#03030{number}" for number in range(1, 9))
"""Placeholder colours that `inline` replaces with the page's CSS variables."""
_VARIABLES = {
    INK: "var(--ink)",
    LINE: "var(--line)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)},
}
DASHES = ("-", "--", "-.", ":")
_SQUARE = 1.15, 0.62
"""Width and height of a square of a heat map, in inches."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished figure: one or several panels on the same scale."""

    title: str
    caption: str
    svgs: Sequence[str]


@dataclass(frozen=True, slots=True)
class Square:
    """One square of a heat map."""

    text: str
    shade: float
    """Opacity of its colour."""
    colour: str = SERIES[0]
    framed: bool = False


def heat_map(
    rows: Sequence[str], columns: Sequence[str], squares: Sequence[Sequence[Square]], name: str, label: str
) -> str:
    """A heat map as an <svg> element; `squares` by row, `name` and `label` as in `svg_of`."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    with page_style():
        width, height = _SQUARE
        figure = Figure(figsize=(2.4 + width * len(columns), 0.9 + height * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for y, row in enumerate(squares):
            for x, square in enumerate(row):
                axes.add_patch(Rectangle((x, y), 1, 1, facecolor=square.colour, alpha=square.shade, linewidth=0))
                axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor=LINE, linewidth=0.6))
                axes.text(x + 0.5, y + 0.5, square.text, ha="center", va="center", linespacing=1.4, color=INK)
                if square.framed:
                    inside = Rectangle((x + 0.03, y + 0.03), 0.94, 0.94, fill=False, edgecolor=INK, linewidth=1.4)
                    axes.add_patch(inside)
        axes.set_xlim(0, len(columns))
        axes.set_ylim(len(rows), 0)
        axes.set_xticks([x + 0.5 for x in range(len(columns))], columns, parse_math=False)
        axes.set_yticks([y + 0.5 for y in range(len(rows))], rows, parse_math=False)
        if len(columns) > 3 or max(map(len, columns)) > 12:
            for tick in axes.get_xticklabels():
                tick.set(rotation=30, ha="right")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        return svg_of(figure, name, label)


def page_style() -> AbstractContextManager[None]:
    """Matplotlib settings for this block: placeholder colours, and SVG text that stays text."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 10,
            "axes.edgecolor": LINE,
            "text.color": INK,
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )


def dress(axes: "Axes", unit: str) -> None:
    """Style axes over training steps."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    light_axes(axes, "y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))


def light_axes(axes: "Axes", grid: Literal["x", "y"]) -> None:
    """Thin lines along one axis behind the data, and no frame; with lines along y, the x axis stays."""
    axes.grid(axis=grid, color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"] if grid == "y" else ["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)


def svg_of(figure: "Figure", name: str, label: str) -> str:
    """The drawing as an <svg> element. `name` must be unique on the page; `label` is the accessible description."""
    import matplotlib

    svg = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return inline(svg.getvalue(), name, label)


def shortened(label: str, length: int = 34) -> str:
    """A label that leaves room for the drawing; the middle of a longer one is replaced by an ellipsis."""
    half = (length - 1) // 2
    return label if len(label) <= length else f"{label[:half]}…{label[-half:]}"


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centred moving average over `window` values (odd); the window is truncated at both ends."""
    half = window // 2
    parts = [values[max(0, index - half) : index + half + 1] for index in range(len(values))]
    return [math.fsum(part) / len(part) for part in parts]


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
