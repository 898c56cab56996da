"""Retrieval shift between two methods (seed 001, section 4.4): do they find the same documents?

The overlap of two rankings is the number of documents that stand among the first k of both. A ratio is that number by
k, or by the length of the longer ranking where both are shorter. The paper's table 2 gives a mean overlap ratio above
the share of questions that have any overlap, which no mean of ratios up to 1 can be; the mean number of shared
documents can, so both are given here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shift:
    """How far the rankings of two methods lie apart."""

    n: int
    """Questions compared."""
    left_out: int
    """Questions for which one of them has no ranking."""
    zero_overlap: float | None
    """Share of questions without a shared document; None without questions, as the others."""
    mean_overlap: float | None
    """Mean ratio, in [0, 1]."""
    mean_shared: float | None
    """Mean number of shared documents, in [0, k]."""


def overlap(a: Sequence[str], b: Sequence[str], k: int) -> tuple[int, float]:
    """The number of documents among the first k of both, and the ratio. Two empty rankings share nothing: 0 and 0."""
    if k < 1:
        raise ValueError(f"k is {k}; expected at least 1")
    first, second = set(a[:k]), set(b[:k])
    shared = len(first & second)
    longest = max(len(first), len(second))
    return shared, shared / longest if longest else 0.0


def retrieval_shift(
    a: Mapping[str, Sequence[str] | None],
    b: Mapping[str, Sequence[str] | None],
    k: int,
    only: Sequence[str] | None = None,
) -> Shift:
    """The shift between rankings by question; None is a ranking that is missing.

    `only` names the questions to compare, as those that one method answers rightly and the other wrongly.
    """
    questions = [one for one in a if one in b] if only is None else list(dict.fromkeys(only))
    pairs = [(a.get(one), b.get(one)) for one in questions]
    found = [overlap(x, y, k) for x, y in pairs if x is not None and y is not None]
    n = len(found)
    return Shift(
        n=n,
        left_out=len(questions) - n,
        zero_overlap=sum(not shared for shared, _ in found) / n if n else None,
        mean_overlap=math.fsum(ratio for _, ratio in found) / n if n else None,
        mean_shared=sum(shared for shared, _ in found) / n if n else None,
    )
