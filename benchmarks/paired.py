"""The paired test of two systems on one question set, for the benchmarks that compare systems."""

from collections.abc import Sequence

from querylect.eval.statistics import PairedComparison, Stratum, compare_strata


def compare_paired(
    a: Sequence[float | None], b: Sequence[float | None], *, resamples: int, permutations: int, seed: int
) -> PairedComparison:
    """Compare two systems question by question. Raises ValueError where no question has a score for both."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values cannot be paired; expected one of each per question")
    comparison = compare_strata([Stratum(1.0, a, b)], resamples=resamples, permutations=permutations, seed=seed)
    if comparison is None:
        raise ValueError("no question has a score for both systems; nothing can be compared")
    return comparison
