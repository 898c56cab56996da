"""Is a difference real? Bootstrap intervals, the paired permutation test, Holm's correction, effect sizes.

Everything here is a pure function of numbers and a seed. A value of None is a *failed search* (the environment did not
answer): its pair is left out of every statistic, and the result counts the pairs left out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Alternative = Literal["two-sided", "greater", "less"]

Strata = Sequence[tuple[float, Sequence[float]]]
"""Sets of questions whose means are averaged: the weight of each, and the values of its questions."""

_LEVEL = 0.95
_BLOCK_ELEMENTS = 1 << 21
"""Random draws per block: bounds the memory of a test for any number of questions and resamples."""


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """System `a` against system `b` on the questions that both have a score for."""

    n: int
    """Pairs compared."""
    left_out: int
    """Pairs left out because the search of at least one side failed."""
    mean_a: float
    mean_b: float
    difference: float
    """mean_a − mean_b."""
    low: float
    """Lower end of the 95% bootstrap interval of the difference."""
    high: float
    p: float
    """Two-sided paired permutation test: (b + 1) / (m + 1), never 0."""
    wins: int
    ties: int
    losses: int
    effect_size: float | None
    """Cohen's d of the paired differences; None where they are constant but not 0."""


def paired_permutation_test(a: Sequence[float], b: Sequence[float], permutations: int, seed: int) -> float:
    """Two-sided probability, under exchangeable pairs, of a mean difference at least as large as that of `a` and `b`.

    The signs of the paired differences are flipped at random m = `permutations` times. If b permutations are at least
    as extreme as the observation, p = (b + 1) / (m + 1), which is never 0 (Phipson & Smyth 2010). Identical inputs give
    exactly 1. Raises ValueError for unequal lengths, no pairs or values that are not finite.
    """
    differences = _differences(a, b)
    moving = differences[differences != 0]
    if not len(moving):
        return 1.0
    observed = moving.sum()
    rounding = 1e-12 * np.abs(moving).sum()
    rng = np.random.default_rng(seed)
    extreme = 0
    for rows in _blocks(permutations, len(moving)):
        flips = rng.integers(0, 2, size=(rows, len(moving)), dtype=np.int8)
        sums = moving.sum() - 2 * (flips @ moving)
        extreme += int((np.abs(sums) >= abs(observed) - rounding).sum())
    return (extreme + 1) / (permutations + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of a family of p-values, returned in their order; each result is at most 1."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def win_tie_loss(a: Sequence[float], b: Sequence[float]) -> tuple[int, int, int]:
    """How often `a` is above, equal to (within 1e-9) and below `b`. Raises ValueError as the test does."""
    differences = _differences(a, b)
    wins, losses = int((differences > 1e-9).sum()), int((differences < -1e-9).sum())
    return wins, len(differences) - wins - losses, losses


def paired_effect_size(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Cohen's d of paired samples: mean difference / standard deviation of the differences (n − 1).

    0 where every difference is 0; None where it is undefined (one pair, or differences that are constant but not 0).
    """
    differences = _differences(a, b)
    if not differences.any():
        return 0.0
    if len(differences) < 2:
        return None
    deviation = float(differences.std(ddof=1))
    if deviation <= 1e-12 * float(np.abs(differences).max()):
        return None
    return float(differences.mean()) / deviation


@dataclass(frozen=True, slots=True)
class Stratum:
    """One of several question sets whose means are averaged, such as a dataset or a part of one."""

    weight: float
    """Share of the average; the weights of all strata sum to 1."""
    a: Sequence[float | None]
    b: Sequence[float | None]


def mean_cis(strata: Mapping[str, Strata], resamples: int, seed: int) -> dict[str, tuple[float, float]]:
    """95% intervals, by name of the metric, of weighted means of means, with each set resampled separately.

    An interval does not depend on the other metrics; those with equally many values in every set share draws. Raises
    ValueError for a set without values, or a value that is not finite.
    """
    data = {name: [(weight, _finite(values)) for weight, values in sets] for name, sets in strata.items()}
    by_draws: dict[tuple[int, ...], list[str]] = {}
    for name, sets in data.items():
        by_draws.setdefault(tuple(len(values) for _, values in sets), []).append(name)
    intervals = {}
    for sizes, names in by_draws.items():
        rng = np.random.default_rng(seed)
        resampled = [_resampled_means([data[name][j][1] for name in names], resamples, rng) for j in range(len(sizes))]
        for column, name in enumerate(names):
            weights = [weight for weight, _ in data[name]]
            means = np.sum([weight * part[column] for weight, part in zip(weights, resampled, strict=True)], axis=0)
            low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
            intervals[name] = float(low), float(high)
    return {name: intervals[name] for name in strata}


def compare_strata(
    strata: Sequence[Stratum], *, resamples: int, permutations: int, seed: int
) -> PairedComparison | None:
    """Compare two systems by the weighted mean of their means; None where a stratum has no pair.

    The permutation test is on the difference of the averages: a pair's weight is that of its stratum divided by the
    number of pairs in it. Wins, ties, losses and the effect size pool all pairs.
    """
    pairs = [[(x, y) for x, y in zip(s.a, s.b, strict=True) if x is not None and y is not None] for s in strata]
    if not pairs or not all(pairs):
        return None
    weighted = [(stratum.weight, group) for stratum, group in zip(strata, pairs, strict=True)]
    mean_a, mean_b = (
        math.fsum(weight * (math.fsum(pair[side] for pair in group) / len(group)) for weight, group in weighted)
        for side in (0, 1)
    )
    left, right = (
        [weight / len(group) * pair[side] for weight, group in weighted for pair in group] for side in (0, 1)
    )
    differences = [(weight, [x - y for x, y in group]) for weight, group in weighted]
    low, high = mean_cis({"": differences}, resamples, seed)[""]
    a, b = ([pair[side] for group in pairs for pair in group] for side in (0, 1))
    wins, ties, losses = win_tie_loss(a, b)
    return PairedComparison(
        n=len(a),
        left_out=sum(len(stratum.a) for stratum in strata) - len(a),
        mean_a=mean_a,
        mean_b=mean_b,
        difference=mean_a - mean_b,
        low=low,
        high=high,
        p=paired_permutation_test(left, right, permutations, seed),
        wins=wins,
        ties=ties,
        losses=losses,
        effect_size=paired_effect_size(a, b),
    )


def _resampled_means(
    columns: Sequence[NDArray[np.float64]], resamples: int, rng: np.random.Generator
) -> list[NDArray[np.float64]]:
    """Means (resamples,) of samples drawn from each of `columns` (n,) with replacement, the same draws for all."""
    size = len(columns[0])
    blocks = []
    for rows in _blocks(resamples, size):
        drawn = rng.integers(0, size, size=(rows, size), dtype=np.int32)
        blocks.append([column.take(drawn).mean(axis=1) for column in columns])
    return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]


def _blocks(total: int, width: int) -> Iterator[int]:
    """Row counts of blocks that sum to `total`, each with a bounded number of elements."""
    rows = max(1, _BLOCK_ELEMENTS // width)
    for start in range(0, total, rows):
        yield min(rows, total - start)


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        raise ValueError("there are no values; expected at least one")
    if not np.isfinite(data).all():
        raise ValueError("a value is not finite; leave failed searches out first")
    return data


def _differences(a: Sequence[float], b: Sequence[float]) -> NDArray[np.float64]:
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values cannot be paired; expected one of each per question")
    return _finite(a) - _finite(b)


Kind = Literal["binomial", "wilcoxon"]


@dataclass(frozen=True, slots=True)
class ExactComparison:
    """System `a` against system `b` on the questions that both have a value for."""

    test: Kind
    alternative: Alternative
    """`greater` tests whether the values of `a` are larger, `less` whether they are smaller."""
    n: int
    """Pairs compared."""
    left_out: int
    mean_a: float
    mean_b: float
    higher: int
    """Pairs in which `a` has the larger value; `lower` counts those in which it has the smaller one."""
    lower: int
    p: float
    """1 where no pair differs."""


def compare_exactly(
    a: Sequence[float | None], b: Sequence[float | None], alternative: Alternative = "greater"
) -> ExactComparison | None:
    """Test `a` against `b` over paired questions, without pairs of equal values; None where no question has both.

    For values of 0 and 1 it is the exact binomial test on discordant pairs (McNemar's, exact), otherwise Wilcoxon's
    signed-rank test. Raises ValueError for unequal lengths and for values that are not finite.
    """
    from scipy.stats import binomtest, wilcoxon

    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if not pairs:
        return None
    left, right = [x for x, _ in pairs], [y for _, y in pairs]
    moving = [difference for difference in _differences(left, right).tolist() if difference]
    higher = sum(difference > 0 for difference in moving)
    binary = {*left, *right} <= {0.0, 1.0}
    p = 1.0
    if moving and binary:
        p = float(binomtest(higher, len(moving), 0.5, alternative=alternative).pvalue)
    elif moving:
        p = float(wilcoxon(moving, alternative=alternative).pvalue)
    return ExactComparison(
        test="binomial" if binary else "wilcoxon",
        alternative=alternative,
        n=len(pairs),
        left_out=len(a) - len(pairs),
        mean_a=math.fsum(left) / len(pairs),
        mean_b=math.fsum(right) / len(pairs),
        higher=higher,
        lower=len(moving) - higher,
        p=p,
    )
