"""Means, pairs and cells: what the tables of `querylect answers` and `querylect paper` share.

A value of None is missing: it is left out of means and pairs, and counted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...markdown_tables import markdown_table


@dataclass(frozen=True, slots=True)
class Mean:
    """One figure."""

    value: float | None
    """None where there is nothing to average."""
    n: int
    """Values that it is the mean of."""


def mean_of(values: Iterable[float | None]) -> Mean:
    """The mean of the values that are not missing."""
    present = [value for value in values if value is not None]
    return Mean(math.fsum(present) / len(present) if present else None, len(present))


def pairs_of(
    a: Mapping[str, float | None], b: Mapping[str, float | None]
) -> tuple[list[float | None], list[float | None]] | None:
    """The values of two systems by question, in the order of `a`; None where no question has a value of both."""
    left, right = list(a.values()), [b.get(question) for question in a]
    comparable = any(x is not None and y is not None for x, y in zip(left, right, strict=True))
    return (left, right) if comparable else None


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with left-aligned columns."""
    return "\n".join(markdown_table(head, rows, "l" * len(head)))


def percent(value: float | None, absent: str = "–") -> str:
    """A share as a percentage with one decimal."""
    return f"{100 * value:.1f}" if value is not None else absent


def points(value: float | None) -> str:
    """A difference in percentage points, with + or a true minus sign; a value that rounds to zero has neither."""
    if value is None:
        return "–"
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text[1:] == "0.0" else text
