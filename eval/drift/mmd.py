"""RE-MMD² between two sets of queries: estimate, interval and permutation test (Yuan et al., eq. 6).

`PooledSides` gives the side and the question of every query: first the n queries of one side, then the m of the other.
A kernel returns sums over its matrix and never holds more than a block of it, so the computation is exact for a hundred
thousand queries as for a hundred. Only the draws are random: every permutation and resample sums over all pairs.

Eq. 6 is unbiased only for independent sides, and sides that answer the same questions are not independent: among the
n·m pairs between the sides, eq. 6 counts n pairs of queries of the same question, which are alike because they ask the
same. `value` takes the same three means over pairs of *different* questions only. It is unbiased in both cases and
equals eq. 6 where no question has two queries. `equation6` has eq. 6 as written. With the estimator "eq6", value,
interval and p are those of eq. 6, as in the paper's figure 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .draws import Floats, Labels, PooledSides, batches, drawn_weights, permuted_labels

Progress = Callable[[int, int], None]
Estimator = Literal["different", "eq6"]
"""The pairs that `value` and `p` are of: those of different questions, or all of eq. 6."""

LEVEL = 0.95
_PAIRS_AT_ONCE = 1 << 16
_ROUNDING = 1e-8
"""Permuted values are sums of float32 products: within this of the observed value, relative to the kernel's mean, they
count as equal."""


class Forms(NamedTuple):
    """Sums over the kernel matrix K of the pooled queries; x and y are the two sides."""

    rows: Floats
    """K1, one value for each query."""
    xx: float
    """1ᵀK1 within the first side, the diagonal included."""
    yy: float
    xy: float
    """1ᵀK1 between the sides, each pair once."""
    signed: Floats
    """sᵀKs for each column s of permuted signs."""
    drawn: Floats
    """(3, resamples): xx, yy and xy with each query weighted by how often its question was drawn."""


class Kernel(Protocol):
    """A positive definite kernel over queries, accessed through sums over its matrix."""

    def diagonal(self) -> Floats:
        """k(q, q) for each query."""

    def at(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> Floats:
        """k of the pairs (i, j) of positions."""

    def forms(
        self, layout: PooledSides, labels: Labels, weights: NDArray[np.uint8], progress: Progress | None = None
    ) -> Forms:
        """The sums for `labels` and for `weights` (questions, resamples)."""


@dataclass(frozen=True, slots=True)
class Drift:
    """RE-MMD² between two sides. Values are squared distances in the kernel's space; they can be below 0."""

    value: float
    """The means of eq. 6 over pairs of queries of different questions; with the estimator "eq6" eq. 6 as written."""
    low: float | None
    """95% bootstrap interval of `value`; None where no resample could be computed."""
    high: float | None
    p: float
    """(b + 1) / (permutations + 1): never 0. One-sided: only a large `value` is evidence."""
    equation6: float
    """Eq. 6 as written, over all pairs of queries."""
    equation6_low: float | None
    equation6_high: float | None
    within: tuple[float, float]
    """Mean kernel value within each side, over all pairs."""
    between: float
    """Mean kernel value between the sides: `equation6` = within[0] + within[1] − 2·between."""


def compare(
    kernel: Kernel,
    layout: PooledSides,
    *,
    permutations: int,
    resamples: int,
    seed: int,
    estimator: Estimator = "different",
    progress: Progress | None = None,
) -> Drift:
    """Estimate RE-MMD² with its interval and p. Deterministic for the same pooled queries and seed.

    Raises ValueError for a side with fewer than two questions, no permutations or no resamples.
    """
    first, second = layout.counts()
    sides = int((first > 0).sum()), int((second > 0).sum())
    if min(sides) < 2:
        raise ValueError(f"the sides have {sides[0]} and {sides[1]} questions; the estimate takes at least 2 of each")
    if permutations < 1 or resamples < 1:
        raise ValueError(f"{permutations} permutations and {resamples} resamples; expected at least 1 of each")
    labels = permuted_labels(layout, permutations, seed)
    weights = drawn_weights(layout, resamples, seed)
    forms = kernel.forms(layout, labels, weights, progress)
    same = _same_question(kernel, layout)
    unit_weights = np.ones((len(first), 1))
    observed = np.array([[forms.xx], [forms.yy], [forms.xy]])
    value, equation6, means = (estimate[..., 0] for estimate in _from_sums(observed, unit_weights, same, layout))
    resampled = _resampled(forms, weights, same, layout)
    (low, high), (equation6_low, equation6_high) = _interval(resampled[0]), _interval(resampled[1])
    excluded = _of_same_question(same, layout)
    if estimator == "eq6":
        value, low, high, excluded = equation6, equation6_low, equation6_high, _of_same_query(same, layout)
    return Drift(
        value=float(value),
        low=low,
        high=high,
        p=_p(layout, labels, forms, excluded, float(value)),
        equation6=float(equation6),
        equation6_low=equation6_low,
        equation6_high=equation6_high,
        within=(float(means[0]), float(means[1])),
        between=float(means[2]),
    )


class _Same(NamedTuple):
    """Kernel sums within each question: k(q, q) of its queries, and over ordered pairs of different queries."""

    diagonal: Floats
    """(2, questions): for the first and the second side."""
    xx: Floats
    yy: Floats
    xy: Floats


def _same_question(kernel: Kernel, layout: PooledSides) -> _Same:
    questions, n = layout.questions, layout.n
    size = int(questions.max()) + 1
    self_kernel = kernel.diagonal()
    diagonal: Floats = np.stack(
        [np.bincount(questions[part], self_kernel[part], minlength=size) for part in (slice(None, n), slice(n, None))],
        dtype=np.float64,
    )
    xx, yy, xy = np.zeros(size), np.zeros(size), np.zeros(size)
    order = np.argsort(questions, kind="stable")
    distance = 1
    while len(order) > distance and (matches := questions[order[:-distance]] == questions[order[distance:]]).any():
        i, j = order[:-distance][matches], order[distance:][matches]
        for start in range(0, len(i), _PAIRS_AT_ONCE):
            a, b = i[start : start + _PAIRS_AT_ONCE], j[start : start + _PAIRS_AT_ONCE]
            values = kernel.at(a, b)
            for target, mask, multiplicity in (
                (xx, (a < n) & (b < n), 2),
                (yy, (a >= n) & (b >= n), 2),
                (xy, (a < n) != (b < n), 1),
            ):
                target += multiplicity * np.bincount(questions[a[mask]], values[mask], minlength=size)
        distance += 1
    return _Same(diagonal, xx, yy, xy)


def _from_sums(sums: Floats, weights: Floats, same: _Same, layout: PooledSides) -> tuple[Floats, Floats, Floats]:
    """For each column of `sums` and `weights`: the value over different questions, eq. 6, and the three means of eq. 6.

    A question drawn w times counts as w questions that are never compared with each other, because a query paired with
    its own copy does not occur in eq. 6. NaN where no pair is left.
    """
    first, second = layout.counts()
    squared = (weights**2).T
    weights = weights.T
    sizes = weights @ first, weights @ second
    same_question = [
        (same.xx, same.diagonal[0], first * (first - 1), first**2),
        (same.yy, same.diagonal[1], second * (second - 1), second**2),
        (same.xy, np.zeros_like(first), first * second, first * second),
    ]
    totals = sizes[0] ** 2, sizes[1] ** 2, sizes[0] * sizes[1]
    cross = np.stack(
        [
            observed - squared @ (pair_sums + diagonal)
            for observed, (pair_sums, diagonal, _, _) in zip(sums, same_question, strict=True)
        ]
    )
    cross_counts = np.stack(
        [total - squared @ square_counts for total, (_, _, _, square_counts) in zip(totals, same_question, strict=True)]
    )
    full = cross + np.stack([weights @ pair_sums for pair_sums, _, _, _ in same_question])
    full_counts = cross_counts + np.stack([weights @ pair_counts for _, _, pair_counts, _ in same_question])
    with np.errstate(divide="ignore", invalid="ignore"):
        cross_means = np.where(cross_counts > 0, cross / cross_counts, np.nan)
        means = np.where(full_counts > 0, full / full_counts, np.nan)
    return _distance(cross_means), _distance(means), means


def _distance(means: Floats) -> Floats:
    distance: Floats = means[0] + means[1] - 2 * means[2]
    return distance


def _resampled(forms: Forms, weights: NDArray[np.uint8], same: _Same, layout: PooledSides) -> tuple[Floats, Floats]:
    values, equation6 = [], []
    for columns in batches(weights.shape[1]):
        estimates = _from_sums(forms.drawn[:, columns], weights[:, columns].astype(float), same, layout)
        values.append(estimates[0])
        equation6.append(estimates[1])
    return np.concatenate(values), np.concatenate(equation6)


def _interval(values: Floats) -> tuple[float | None, float | None]:
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


class _Excluded(NamedTuple):
    """What an estimator leaves out of the kernel sums, and how many pairs that is; the first four by question."""

    x: Floats
    y: Floats
    x_pairs: Floats
    y_pairs: Floats
    xy: float
    xy_pairs: float


def _of_same_question(same: _Same, layout: PooledSides) -> _Excluded:
    first, second = layout.counts()
    x, y = same.xx + same.diagonal[0], same.yy + same.diagonal[1]
    return _Excluded(x, y, first**2, second**2, float(same.xy.sum()), float(first @ second))


def _of_same_query(same: _Same, layout: PooledSides) -> _Excluded:
    """Eq. 6 leaves out only the pairs of a query with itself."""
    return _Excluded(same.diagonal[0], same.diagonal[1], *layout.counts(), 0.0, 0.0)


def _p(layout: PooledSides, labels: Labels, forms: Forms, excluded: _Excluded, value: float) -> float:
    """Share of the layouts (the permuted ones and the observed one) whose value is at least the observed value.

    Swapping a shared question moves the kernel sums within its queries to the other side; a question on one side only
    moves as a whole. Its sums between the sides stay as they are.
    """
    total = forms.xx + forms.yy + 2 * forms.xy
    first, second = layout.counts()
    shared = (first > 0) & (second > 0)
    same_sums = _by_label(excluded.x, excluded.y, shared)
    same_counts = _by_label(excluded.x_pairs, excluded.y_pairs, shared)
    extreme = 0
    for columns in batches(labels.draws.shape[1]):
        draws = labels.draws[:, columns].astype(float)
        signs = draws[layout.questions] * labels.factor[:, None]
        linear, signed = forms.rows @ signs, forms.signed[columns]
        size_x = (len(signs) + signs.sum(axis=0)) / 2
        size_y = len(signs) - size_x
        x, y = ((same_sums[0] + sign * (same_sums[1] @ draws)) / 2 for sign in (1, -1))
        pairs_x, pairs_y = ((same_counts[0] + sign * (same_counts[1] @ draws)) / 2 for sign in (1, -1))
        xx = ((total + 2 * linear + signed) / 4 - x) / (size_x**2 - pairs_x)
        yy = ((total - 2 * linear + signed) / 4 - y) / (size_y**2 - pairs_y)
        xy = ((total - signed) / 4 - excluded.xy) / (size_x * size_y - excluded.xy_pairs)
        extreme += int((xx + yy - 2 * xy >= value - _ROUNDING * total / len(signs) ** 2).sum())
    return float((extreme + 1) / (labels.draws.shape[1] + 1))


def _by_label(first: Floats, second: Floats, shared: NDArray[np.bool_]) -> tuple[float, Floats]:
    """(t, d) such that under labels l the first side's total is (t + dᵀl)/2 and the second side's is (t − dᵀl)/2.

    `first` and `second` are the quantities of each question on the two sides.
    """
    return float((first + second).sum()), np.where(shared, first - second, first + second)
