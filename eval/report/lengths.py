"""Lengths of a system's thinking and rewrites by turn, and the total costs of its answers.

Lengths are in whitespace-separated words. Thinking is averaged over all answers; rewrites (all of one answer together)
are averaged over the answers in the requested format, because the others have none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import add

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...llms.base import complete_sum
from ..pages.figures import DASHES, SERIES, Drawing, light_axes, page_style, shortened, svg_of
from ..records import EvalRecord

_WIDTH, _HEIGHT = 4.8, 2.2
"""Inches of one environment's drawing, without its legend."""
_LEGEND_LINE, _CHARACTER, _HANDLE = 0.22, 0.088, 0.55
"""Inches of a legend's line, of a character, and of the line in front of a label with its gaps."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sums over the answers of one turn; the sums of several datasets can be added."""

    answers: int = 0
    think: int = 0
    """Words."""
    in_format: int = 0
    """Number of answers in the requested format."""
    rewrite: int = 0
    """Words."""

    def __add__(self, other: "Lengths") -> "Lengths":
        return Lengths(*map(add, astuple(self), astuple(other)))

    @property
    def think_mean(self) -> float | None:
        """Mean words of thinking per answer; None without an answer."""
        return self.think / self.answers if self.answers else None

    @property
    def rewrite_mean(self) -> float | None:
        """Mean words of rewrites per answer in the requested format; None without one."""
        return self.rewrite / self.in_format if self.in_format else None


@dataclass(frozen=True, slots=True)
class Totals:
    """Total costs of all answers of a cell."""

    answers: int
    """Number of answers: questions times samples."""
    calls: int | None
    """Texts that the language model wrote; None with records of earlier versions, which do not count them."""
    tokens_in: int | None
    """Prompt tokens of every turn, even if an engine computes a shared prefix only once. None if an endpoint does not
    report them for every answer; the same holds for tokens_out."""
    tokens_out: int | None
    searches: int
    seconds: float


def lengths_by_turn(records: Sequence[EvalRecord]) -> dict[int, Lengths]:
    """A system's lengths by turn; turn 0 (the raw question) is left out."""
    by_turn: dict[int, Lengths] = {}
    for record in records:
        if record.turn:
            rewrite = sum(len(text.split()) for text in record.rewrites) if record.format_ok else 0
            lengths = Lengths(1, len(record.think.split()), int(record.format_ok), rewrite)
            by_turn[record.turn] = by_turn.get(record.turn, Lengths()) + lengths
    return dict(sorted(by_turn.items()))


def totals(records: Sequence[EvalRecord]) -> Totals:
    """Sums over the records of one cell; figures that accumulate over turns are taken from the last turn."""
    last: dict[tuple[str, int], EvalRecord] = {}
    for record in records:
        key = record.question_id, record.sample
        if key not in last or record.turn > last[key].turn:
            last[key] = record
    return Totals(
        answers=len(last),
        calls=complete_sum([record.calls if record.turn else 0 for record in last.values()]),
        tokens_in=complete_sum([record.prompt_tokens for record in records]),
        tokens_out=complete_sum([record.tokens for record in last.values()]),
        searches=sum(record.searches for record in last.values()),
        seconds=math.fsum(record.seconds for record in last.values()),
    )


def legend_columns(labels: Sequence[str]) -> int:
    """How many columns of a legend fit into the drawing without running over its edge."""
    widest = max(len(shortened(label)) for label in labels) * _CHARACTER + _HANDLE
    return max(1, min(3, int(_WIDTH / widest)))


def draw_lengths(environment: str, systems: Mapping[str, Mapping[int, Lengths]], name: str) -> Drawing:
    """Draw thinking and rewrites by turn in one environment, a line per system. `name` must be unique on the page."""
    parts = [("thinking", "think_mean"), ("rewrites", "rewrite_mean")]
    if not any(lengths.think for turns in systems.values() for lengths in turns.values()):
        parts = parts[1:]
    last = max(turn for turns in systems.values() for turn in turns)
    descriptions: list[str] = []
    with page_style():
        columns = legend_columns(list(systems))
        figure = Figure(
            figsize=(_WIDTH, _HEIGHT + _LEGEND_LINE * math.ceil(len(systems) / columns)), layout="constrained"
        )
        for axes, (title, key) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
            for number, (system, turns) in enumerate(systems.items()):
                points = [
                    (turn, mean) for turn, lengths in turns.items() if (mean := getattr(lengths, key)) is not None
                ]
                if not points:
                    continue
                colour, dash = SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]
                x, y = zip(*points, strict=True)
                label = shortened(system) if axes is figure.axes[0] else None
                axes.plot(
                    x, y, dash, color=colour, marker="o", markersize=4.5, linewidth=1.8, label=label, clip_on=False
                )
                descriptions.append(
                    f"{title} of {system} {', '.join(f'{mean:.1f} at turn {turn}' for turn, mean in points)}"
                )
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xlabel("turn")
            axes.set_xlim(0.7, last + 0.3)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=max(last, 1), integer=True))
            axes.set_ylim(bottom=0)
            light_axes(axes, "y")
        figure.axes[0].set_ylabel("words")
        figure.legend(loc="outside upper left", frameon=False, ncols=columns, handlelength=2.2, borderaxespad=0.2)
        svg = svg_of(figure, name, f"Words by turn in {environment}: {'; '.join(descriptions)}.")
    return Drawing(environment, "Mean words of an answer by turn, over all datasets.", [svg])
