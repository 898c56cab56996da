"""How long a system thinks and how long its rewrites are, turn by turn, and what its answers cost in all.

Lengths are in words, parted by white space: of thinking over all answers, of rewrites (all of one answer together) over
the answers that kept the format, for the others hold none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..pages.figures import DASHES, LINE, SERIES, Drawing, page_style, svg_of
from ..records import EvalRecord

_WIDTH, _HEIGHT = 5.6, 2.6
"""Inches of the drawing of one environment."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sums over the answers of one turn; those of several datasets can be added up."""

    answers: int = 0
    think: int = 0
    """Words."""
    written: int = 0
    """Answers in the asked format."""
    rewrite: int = 0
    """Words."""

    def __add__(self, other: "Lengths") -> "Lengths":
        return Lengths(
            self.answers + other.answers,
            self.think + other.think,
            self.written + other.written,
            self.rewrite + other.rewrite,
        )

    @property
    def think_mean(self) -> float | None:
        """None without an answer."""
        return self.think / self.answers if self.answers else None

    @property
    def rewrite_mean(self) -> float | None:
        """None without an answer in the asked format."""
        return self.rewrite / self.written if self.written else None


@dataclass(frozen=True, slots=True)
class Totals:
    """What all answers of a cell took together."""

    answers: int
    """Questions times samples."""
    calls: int
    """Of the language model."""
    tokens_in: int | None
    """Read: every prompt of every turn, also where an engine reads a shared beginning once. None where an endpoint does
    not say of every answer; so is tokens_out."""
    tokens_out: int | None
    searches: int
    seconds: float


def lengths_by_turn(records: Sequence[EvalRecord]) -> dict[int, Lengths]:
    """The lengths of the rewriting turns of a system."""
    found: dict[int, Lengths] = {}
    for record in records:
        if record.turn:
            rewrite = sum(len(text.split()) for text in record.rewrites) if record.format_ok else 0
            one = Lengths(1, len(record.think.split()), int(record.format_ok), rewrite)
            found[record.turn] = found.get(record.turn, Lengths()) + one
    return dict(sorted(found.items()))


def totals(records: Sequence[EvalRecord], calls: int = 1) -> Totals:
    """The sums over the records of one cell; what a record counts from the first turn on is taken at its last.

    `calls` of the language model are made for a turn.
    """
    last: dict[tuple[str, int], EvalRecord] = {}
    for record in records:
        key = record.question_id, record.sample
        if key not in last or record.turn > last[key].turn:
            last[key] = record
    return Totals(
        answers=len(last),
        calls=calls * sum(record.turn > 0 for record in records),
        tokens_in=_known([record.prompt_tokens for record in records]),
        tokens_out=_known([record.tokens for record in last.values()]),
        searches=sum(record.searches for record in last.values()),
        seconds=math.fsum(record.seconds for record in last.values()),
    )


def _known(counts: Sequence[int | None]) -> int | None:
    """Their sum; None where one is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def draw_lengths(environment: str, systems: Mapping[str, Mapping[int, Lengths]], name: str) -> Drawing:
    """Thinking and rewrites by turn in one environment, a line for each system; `name` is its own on the page."""
    parts = [("thinking", "think_mean"), ("rewrites", "rewrite_mean")]
    if not any(one.think for turns in systems.values() for one in turns.values()):
        parts = parts[1:]
    last = max(turn for turns in systems.values() for turn in turns)
    told: list[str] = []
    with page_style():
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        for axes, (title, key) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
            for number, (system, turns) in enumerate(systems.items()):
                points = [(turn, mean) for turn, one in turns.items() if (mean := getattr(one, key)) is not None]
                if not points:
                    continue
                colour, dash = SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]
                x, y = zip(*points, strict=True)
                label = system if axes is figure.axes[0] else None
                axes.plot(x, y, dash, color=colour, marker="o", markersize=4.5, linewidth=1.8, label=label)
                told.append(f"{title} of {system} {', '.join(f'{mean:.1f} at turn {turn}' for turn, mean in points)}")
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xlabel("turn")
            axes.set_xlim(0.7, last + 0.3)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=max(last, 1), integer=True))
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", color=LINE, linewidth=0.6)
            axes.set_axisbelow(True)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(length=0)
        figure.axes[0].set_ylabel("words")
        figure.legend(loc="outside upper left", frameon=False, ncols=3, handlelength=2.2, borderaxespad=0.2)
        svg = svg_of(figure, name, f"Words by turn in {environment}: {'; '.join(told)}.")
    return Drawing(environment, "Mean words of an answer by turn, over all datasets.", svg)
