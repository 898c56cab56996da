"""Means, pairs, adjusted p-values and cells: what the tables of `querylect answers` and `querylect paper` share.

A value of None is missing: it is left out of means and pairs, and counted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ...markdown_tables import markdown_table
from ..statistics import holm
from ..table import format_p

Key = TypeVar("Key")


class Tested(Protocol):
    """A test with a p-value."""

    @property
    def p(self) -> float:
        """The p-value, unadjusted."""
        ...


AnyTest = TypeVar("AnyTest", bound=Tested)


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


def with_holm(tests: Sequence[tuple[Key, AnyTest]]) -> list[tuple[Key, AnyTest, float]]:
    """The tests, each with its p adjusted over all of them by Holm's method."""
    adjusted = holm([test.p for _, test in tests])
    return [(key, test, p) for (key, test), p in zip(tests, adjusted, strict=True)]


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


def number(value: float | None, digits: int = 2) -> str:
    """A number with so many decimals."""
    return f"{value:.{digits}f}" if value is not None else "–"


def p_cells(p: float, p_holm: float) -> list[str]:
    """The cells of a test: p, adjusted p."""
    return [format_p(value).removeprefix("= ") for value in (p, p_holm)]
