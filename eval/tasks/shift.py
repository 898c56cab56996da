"""Retrieval shift between two methods (the CHR paper, section 4.4): do they find the same documents?

The overlap of two rankings is the number of documents in the first k of both; its ratio divides it by k, or by the
length of the longer ranking where both are shorter. In the paper's table 2 the mean overlap ratio exceeds the share of
questions with any overlap. No mean of ratios up to 1 can do that, but a mean number of shared documents can, so both
are reported.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

Rankings = Mapping[str, Sequence[str] | None]
"""By question; None is a missing ranking."""


def retrieval_shift(a: Rankings, b: Rankings, k: int) -> dict[str, float]:
    """`n` questions that both have documents for; of them the share with `zero` overlap, the `mean` overlap ratio and
    the mean number of documents `shared`; only `n` where it is 0."""
    overlaps = []
    for first, second in ((a[question], b[question]) for question in a if question in b):
        if first and second:
            tops = set(first[:k]), set(second[:k])
            overlaps.append((len(tops[0] & tops[1]), max(map(len, tops))))
    if not overlaps:
        return {"n": 0}
    return {
        "n": len(overlaps),
        "zero": fmean(not shared for shared, _ in overlaps),
        "mean": fmean(shared / longer for shared, longer in overlaps),
        "shared": fmean(shared for shared, _ in overlaps),
    }
