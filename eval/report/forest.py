"""Forest plots: the scores of a table with their intervals, one panel per environment, all on one scale."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...configs.evaluation import RAW
from ..pages.figures import INK, SERIES, Drawing, light_axes, page_style, shortened, svg_of
from ..spec_tables import phrase
from ..table import Row, Table, TableScore

_WIDTH, _ROW, _AXIS_HEIGHT = 4.8, 0.27, 0.75
"""Inches of a panel: its width, the height of a row, and the height of the axis."""
_MARKS = {"better": ("^", SERIES[0]), "worse": ("v", SERIES[1]), "same": ("o", INK)}
"""Distinguished by shape, not only by colour."""


def draw_table(table: Table, metric: str, baseline: str, name: str) -> Drawing | None:
    """Draw means and 95% intervals of `metric`, the first one of the table; None if no row has a score.

    A line marks the raw question. Rows that are significantly better or worse than `baseline` have different marks.
    `name` must be unique on the page.
    """
    scores = [score for row in table.rows for score in row.scores.values() if score is not None]
    ends = [(score.low, score.high) for score in scores if score.low is not None and score.high is not None]
    if not ends:
        return None
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    margin = 0.06 * (high - low) or 0.02
    svgs = []
    with page_style():
        for number, environment in enumerate(table.environments):
            rows = [(row, score) for row in table.rows if (score := row.scores.get(environment)) is not None]
            figure = Figure(figsize=(_WIDTH, _AXIS_HEIGHT + _ROW * len(rows)), layout="constrained")
            axes = figure.add_subplot()
            for position, (row, score) in enumerate(rows):
                kind = "same" if row.arm.system == RAW else _kind(table, row, environment, baseline)
                _dot(axes, position, score, metric, kind)
            raw = next((score.metrics[metric] for row, score in rows if row.arm.system == RAW), None)
            if raw is not None:
                axes.axvline(raw, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.6, zorder=1)
            axes.set_yticks(range(len(rows)), [shortened(row.label) for row, _ in rows], parse_math=False)
            axes.set_ylim(len(rows) - 0.4, -0.6)
            axes.set_xlim(low - margin, high + margin)
            axes.set_xlabel(metric)
            axes.set_title(environment, fontsize=10, loc="left", fontweight="bold", parse_math=False)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
            light_axes(axes, "x")
            summary = "; ".join(f"{row.label} {_describe(score, metric)}" for row, score in rows)
            svgs.append(
                svg_of(figure, f"{name}-{number}", f"{table.title} in {environment}, mean {metric}: {summary}.")
            )
    caption = (
        f"Mean {metric} with its 95% bootstrap interval; dashed line: the raw question. ▲ significantly better than "
        f"{phrase(baseline)}, ▼ significantly worse, ● neither, by Holm-adjusted p. That two intervals overlap says "
        "little: the tests are paired, question by question."
    )
    return Drawing(table.title, caption, svgs)


def _dot(axes: Axes, position: int, score: TableScore, metric: str, kind: str) -> None:
    mean = score.metrics[metric]
    if mean is None or score.low is None or score.high is None:
        return
    marker, colour = _MARKS[kind]
    axes.plot(
        [score.low, score.high], [position, position], color=colour, linewidth=1.8, solid_capstyle="butt", zorder=2
    )
    axes.plot([mean], [position], marker, color=colour, markersize=6 if kind == "same" else 8, zorder=3)


def _kind(table: Table, row: Row, environment: str, baseline: str) -> str:
    for comparison in table.comparisons:
        key = comparison.arm, comparison.environment, comparison.baseline.system
        if key == (row.arm, environment, baseline):
            return comparison.outcome
    return "same"


def _describe(score: TableScore, metric: str) -> str:
    return f"{score.metrics[metric]:.3f} ({score.interval})" if score.interval else "without a score"
