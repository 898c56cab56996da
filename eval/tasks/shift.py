"""Retrieval shift between two methods (the CHR paper, section 4.4): do they find the same documents?

The overlap of two rankings is the number of documents in the first k of both. The overlap ratio divides it by k, or by
the length of the longer ranking where both are shorter than k. In the paper's table 2 the mean overlap ratio exceeds
the share of questions with any overlap. No mean of ratios up to 1 can do that, but a mean number of shared documents
can, so both are reported here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shift:
    """How much the rankings of two methods differ."""

    n: int
    """Questions compared."""
    left_out: int
    """Questions for which a method has no ranking."""
    empty: int
    """Questions for which a method ranked no document: there is nothing to overlap, so they are not compared."""
    zero_overlap: float | None
    """Share of questions without a shared document; None without questions, like the means below."""
    mean_overlap: float | None
    """Mean ratio, in [0, 1]."""
    mean_shared: float | None
    """Mean number of shared documents, in [0, k]."""


def overlap(a: Sequence[str], b: Sequence[str], k: int) -> tuple[int, float]:
    """The number of documents among the first k of both, and the ratio; one of them has documents."""
    first, second = set(a[:k]), set(b[:k])
    shared = len(first & second)
    return shared, shared / max(len(first), len(second))


def retrieval_shift(
    a: Mapping[str, Sequence[str] | None],
    b: Mapping[str, Sequence[str] | None],
    k: int,
    only: Sequence[str] | None = None,
) -> Shift:
    """The shift between two methods' rankings by question; None is a missing ranking.

    `only` restricts the questions, such as to those that one method answers rightly and the other wrongly.
    """
    questions = [question for question in a if question in b] if only is None else list(dict.fromkeys(only))
    pairs = [(a.get(question), b.get(question)) for question in questions]
    overlaps = [overlap(x, y, k) for x, y in pairs if x and y]
    n = len(overlaps)
    return Shift(
        n=n,
        left_out=sum(x is None or y is None for x, y in pairs),
        empty=sum(x is not None and y is not None and not (x and y) for x, y in pairs),
        zero_overlap=sum(not shared for shared, _ in overlaps) / n if n else None,
        mean_overlap=math.fsum(ratio for _, ratio in overlaps) / n if n else None,
        mean_shared=sum(shared for shared, _ in overlaps) / n if n else None,
    )
