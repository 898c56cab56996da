"""Is a difference real? Bootstrap intervals, paired tests, Holm's correction, effect sizes.

Pure functions of numbers and a seed. A value that is missing (None, NaN) is a *failed search*: its pair is left out of
every statistic, and the result counts the pairs left out. Several sets of questions (*strata*), whose means are
averaged, have weights that sum to 1; a question weighs as its set divided by the set's size, in every statistic.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

_QUANTILES = (0.025, 0.975)
_FLIPS, _DRAWS = 1 << 21, 1 << 18
"""Random numbers per block: they bound the memory of a test and of an interval, for any number of questions."""
_TIE = 1e-9
"""Differences up to this are ties."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    wins: float
    """Pairs in which `a` is higher. In an average of several sets a pair counts by its weight, as in the difference;
    wins, ties and losses sum to n."""
    ties: float
    losses: float
    effect_size: float | None
    """Cohen's d of the paired differences; None where they are constant but not 0."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """One of several question sets whose means are averaged, such as a dataset or a part of one."""

    weight: float
    """Share of the average; the weights of all strata sum to 1."""
    a: Sequence[float | None]
    b: Sequence[float | None]


def paired_permutation_test(a: ArrayLike, b: ArrayLike, permutations: int, seed: int) -> float:
    """Two-sided probability, under exchangeable pairs, of a mean difference at least as large as that of `a` and `b`.

    The signs of the paired differences are flipped at random m = `permutations` times. If b permutations are at least
    as extreme as the observation, p = (b + 1) / (m + 1), which is never 0 (Phipson & Smyth 2010). Identical inputs give
    exactly 1.
    """
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    moving = differences[differences != 0]
    if not len(moving):
        return 1.0
    observed = moving.sum()
    rounding = 1e-12 * np.abs(moving).sum()
    rng = np.random.default_rng(seed)
    extreme = 0
    for rows in _blocks(permutations, len(moving), _FLIPS):
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


def mean_cis(
    strata: Mapping[str, Sequence[tuple[float, ArrayLike]]], resamples: int, seed: int
) -> dict[str, tuple[float, float]]:
    """95% intervals, by name of the metric, of weighted means of means, with each set resampled separately.

    `strata` are weights and values, none of them empty or NaN. An interval does not depend on the other metrics; those
    with equally many values in every set share draws.
    """
    data = {
        name: [(weight, np.asarray(values, np.float64)) for weight, values in sets] for name, sets in strata.items()
    }
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
            low, high = np.quantile(means, _QUANTILES)
            intervals[name] = float(low), float(high)
    return {name: intervals[name] for name in strata}


def compare_strata(
    strata: Sequence[Stratum], *, resamples: int, permutations: int, seed: int
) -> PairedComparison | None:
    """Compare two systems by the weighted mean of their means; None where a stratum has no pair.

    Every figure weighs a pair by its stratum's weight / pairs of the stratum: the permutation test is on the difference
    of the averages, and wins, ties, losses and the effect size are weighted, too.
    """
    groups = [(stratum.weight, _pairs(stratum.a, stratum.b)) for stratum in strata]
    if not groups or not all(len(group) for _, group in groups):
        return None
    a, b = np.concatenate([group for _, group in groups]).T
    weights = np.concatenate([np.full(len(group), weight / len(group)) for weight, group in groups])
    mean_a, mean_b = (
        math.fsum(weight * (math.fsum(group[:, side]) / len(group)) for weight, group in groups) for side in (0, 1)
    )
    differences = [(weight, group[:, 0] - group[:, 1]) for weight, group in groups]
    low, high = mean_cis({"": differences}, resamples, seed)[""]
    signs = np.sign(np.where(np.abs(a - b) > _TIE, a - b, 0))
    wins, ties, losses = (round(float(len(a) * weights[signs == sign].sum()), 9) for sign in (1, 0, -1))
    return PairedComparison(
        n=len(a),
        left_out=sum(len(stratum.a) for stratum in strata) - len(a),
        mean_a=mean_a,
        mean_b=mean_b,
        difference=mean_a - mean_b,
        low=low,
        high=high,
        p=paired_permutation_test(weights * a, weights * b, permutations, seed),
        wins=wins,
        ties=ties,
        losses=losses,
        effect_size=_effect_size(a - b, weights),
    )


def compare_exactly(
    a: Sequence[float | None], b: Sequence[float | None], alternative: Literal["greater", "less"]
) -> dict[str, Any] | None:
    """One-sided test of `a` against `b` over paired questions, without pairs of equal values.

    `greater` tests whether the values of `a` are larger, `less` whether they are smaller. For values of 0 and 1 it is
    the exact binomial test on discordant pairs (McNemar's), otherwise Wilcoxon's signed-rank test. Returns `test` (its
    name), `n` (pairs), `mean_a`, `mean_b`, `higher` and `lower` (pairs in which `a` is), and `p`, 1 where no pair
    differs; None where no question has both values.
    """
    from scipy.stats import binomtest, wilcoxon

    pairs = _pairs(a, b)
    if not len(pairs):
        return None
    moving = pairs[pairs[:, 0] != pairs[:, 1]]
    higher = int((moving[:, 0] > moving[:, 1]).sum())
    test, p = ("binomial" if np.isin(pairs, (0.0, 1.0)).all() else "wilcoxon"), 1.0
    if len(moving) and test == "binomial":
        p = float(binomtest(higher, len(moving), 0.5, alternative).pvalue)
    elif len(moving):
        p = float(wilcoxon(*moving.T, alternative=alternative).pvalue)
    mean_a, mean_b = (math.fsum(pairs[:, side]) / len(pairs) for side in (0, 1))
    counts = {"higher": higher, "lower": len(moving) - higher}
    return {"test": test, "n": len(pairs), "mean_a": mean_a, "mean_b": mean_b, **counts, "p": p}


def _effect_size(differences: NDArray[np.float64], weights: NDArray[np.float64]) -> float | None:
    """Cohen's d of paired differences: their mean / their standard deviation (unbiased, n − 1); weights sum to 1."""
    if not differences.any():
        return 0.0
    if len(differences) < 2:
        return None
    deviation = math.sqrt(float(np.cov(differences, aweights=weights)))
    constant = deviation <= 1e-12 * float(np.abs(differences).max())
    return None if constant else float(differences @ weights) / deviation


def _pairs(a: Sequence[float | None], b: Sequence[float | None]) -> NDArray[np.float64]:
    """The pairs (n, 2) that have both values."""
    pairs = np.array(list(zip(a, b, strict=True)), dtype=np.float64).reshape(-1, 2)
    return pairs[~np.isnan(pairs).any(axis=1)]


def _resampled_means(
    columns: Sequence[NDArray[np.float64]], resamples: int, rng: np.random.Generator
) -> list[NDArray[np.float64]]:
    """Means (resamples,) of samples drawn from each of `columns` (n,) with replacement, the same draws for all."""
    size = len(columns[0])
    blocks = []
    for rows in _blocks(resamples, size, _DRAWS):
        drawn = rng.integers(0, size, size=(rows, size), dtype=np.int32)
        blocks.append([column.take(drawn).mean(axis=1) for column in columns])
    return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]


def _blocks(total: int, width: int, elements: int) -> Iterator[int]:
    """Row counts of blocks that sum to `total`, each with at most so many elements, or one row."""
    rows = max(1, elements // width)
    for start in range(0, total, rows):
        yield min(rows, total - start)
