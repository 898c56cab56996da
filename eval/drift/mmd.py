"""RE-MMD² between two sets of queries: the estimate, its interval, and whether chance explains it (seed 003, eq. 6).

`Layout` says which side and which question every query belongs to: first the n queries of one side, then the m of the
other. A kernel answers with sums over its matrix and never holds more of that than a block, so that what is exact for
a hundred queries is as exact for a hundred thousand. Nothing here is approximated but the draws themselves: every
permutation and every resample is summed over all pairs of queries.

Two sides that answer the same questions are not independent, and eq. 6 is unbiased only for independent ones: it
counts each question's own two queries, which are alike because they ask the same, n times among n·m pairs. `value` is
the same three means over pairs of *different* questions, which is unbiased either way, and is eq. 6 where no question
has two queries; eq. 6 as it is written stands beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .draws import Floats, Labels, Layout, batches, drawn_weights, permuted_labels

Progress = Callable[[int, int], None]

LEVEL = 0.95
_PAIRS_AT_ONCE = 1 << 16
_ROUNDING = 1e-8
"""Permuted values are summed from float32 products; closer to the observed one than this, relative to the mean of the
kernel, they count as equal to it."""


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
    """(3, resamples): xx, yy and xy with every query weighted by how often its question was drawn."""


class Kernel(Protocol):
    """A positive definite function of two queries, known by sums over its matrix."""

    def diagonal(self) -> Floats:
        """k(q, q) for each query."""

    def at(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> Floats:
        """k of the pairs (i, j) of positions."""

    def forms(
        self, layout: Layout, labels: Labels, weights: NDArray[np.uint8], progress: Progress | None = None
    ) -> Forms:
        """The sums for `labels` and for `weights` (questions, resamples)."""


@dataclass(frozen=True, slots=True)
class Drift:
    """RE-MMD² between two sides. Values are squared distances in the kernel's space; they can be below 0."""

    value: float
    """The means of eq. 6 over pairs of queries of different questions."""
    low: float | None
    """95% bootstrap interval of `value`; None where no resample could be computed."""
    high: float | None
    p: float
    """(b + 1) / (permutations + 1): never 0. One-sided: only a large `value` is evidence."""
    equation6: float
    """Over all pairs of queries."""
    equation6_low: float | None
    equation6_high: float | None
    within: tuple[float, float]
    """Mean kernel value within each side, over all pairs."""
    between: float
    """Between the sides: `equation6` = within[0] + within[1] − 2·between."""


def compare(
    kernel: Kernel, layout: Layout, *, permutations: int, resamples: int, seed: int, progress: Progress | None = None
) -> Drift:
    """Estimate RE-MMD² with its interval and its p. Seeded: the same pooled queries give the same numbers.

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
    all_once = np.ones((len(first), 1))
    seen = np.array([[forms.xx], [forms.yy], [forms.xy]])
    value, equation6, means = (found[..., 0] for found in _from_sums(seen, all_once, same, layout))
    resampled = _resampled(forms, weights, same, layout)
    (low, high), (equation6_low, equation6_high) = _interval(resampled[0]), _interval(resampled[1])
    return Drift(
        value=float(value),
        low=low,
        high=high,
        p=_p(layout, labels, forms, same, float(value)),
        equation6=float(equation6),
        equation6_low=equation6_low,
        equation6_high=equation6_high,
        within=(float(means[0]), float(means[1])),
        between=float(means[2]),
    )


class _Same(NamedTuple):
    """Sums of the kernel for each question: k(q, q) of its queries, and ordered pairs of different ones."""

    diagonal: Floats
    """(2, questions): of the first and the second side."""
    xx: Floats
    yy: Floats
    xy: Floats


def _same_question(kernel: Kernel, layout: Layout) -> _Same:
    questions, n = layout.questions, layout.n
    size = int(questions.max()) + 1
    own = kernel.diagonal()
    diagonal: Floats = np.stack(
        [np.bincount(questions[part], own[part], minlength=size) for part in (slice(None, n), slice(n, None))],
        dtype=np.float64,
    )
    xx, yy, xy = np.zeros(size), np.zeros(size), np.zeros(size)
    order = np.argsort(questions, kind="stable")
    distance = 1
    while len(order) > distance and (near := questions[order[:-distance]] == questions[order[distance:]]).any():
        i, j = order[:-distance][near], order[distance:][near]
        for start in range(0, len(i), _PAIRS_AT_ONCE):
            a, b = i[start : start + _PAIRS_AT_ONCE], j[start : start + _PAIRS_AT_ONCE]
            values = kernel.at(a, b)
            for target, chosen, times in (
                (xx, (a < n) & (b < n), 2),
                (yy, (a >= n) & (b >= n), 2),
                (xy, (a < n) != (b < n), 1),
            ):
                target += times * np.bincount(questions[a[chosen]], values[chosen], minlength=size)
        distance += 1
    return _Same(diagonal, xx, yy, xy)


def _from_sums(sums: Floats, weights: Floats, same: _Same, layout: Layout) -> tuple[Floats, Floats, Floats]:
    """The value over different questions, that of eq. 6, and its three means, for each column of `sums` and `weights`.

    A question drawn w times is w questions that are never compared with each other: their pairs would be a query
    beside its own copy, of which eq. 6 knows none. NaN where nothing is left to compare.
    """
    first, second = layout.counts()
    squared = (weights**2).T
    weights = weights.T
    sizes = weights @ first, weights @ second
    own = [
        (same.xx, same.diagonal[0], first * (first - 1), first**2),
        (same.yy, same.diagonal[1], second * (second - 1), second**2),
        (same.xy, np.zeros_like(first), first * second, first * second),
    ]
    totals = sizes[0] ** 2, sizes[1] ** 2, sizes[0] * sizes[1]
    apart = np.stack([seen - squared @ (pairs + once) for seen, (pairs, once, _, _) in zip(sums, own, strict=True)])
    apart_of = np.stack([total - squared @ every for total, (_, _, _, every) in zip(totals, own, strict=True)])
    whole = apart + np.stack([weights @ pairs for pairs, _, _, _ in own])
    whole_of = apart_of + np.stack([weights @ others for _, _, others, _ in own])
    with np.errstate(divide="ignore", invalid="ignore"):
        across = np.where(apart_of > 0, apart / apart_of, np.nan)
        means = np.where(whole_of > 0, whole / whole_of, np.nan)
    return _distance(across), _distance(means), means


def _distance(means: Floats) -> Floats:
    distance: Floats = means[0] + means[1] - 2 * means[2]
    return distance


def _resampled(forms: Forms, weights: NDArray[np.uint8], same: _Same, layout: Layout) -> tuple[Floats, Floats]:
    values, equation6 = [], []
    for columns in batches(weights.shape[1]):
        found = _from_sums(forms.drawn[:, columns], weights[:, columns].astype(float), same, layout)
        values.append(found[0])
        equation6.append(found[1])
    return np.concatenate(values), np.concatenate(equation6)


def _interval(values: Floats) -> tuple[float | None, float | None]:
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _p(layout: Layout, labels: Labels, forms: Forms, same: _Same, value: float) -> float:
    """Share of the permuted layouts, the seen one among them, whose value is at least the seen one.

    A shared question that is swapped takes the sums of its own queries to the other side; one that is dealt out anew
    has them on one side only. What it has between the sides stays between them.
    """
    total = forms.xx + forms.yy + 2 * forms.xy
    first, second = layout.counts()
    shared = (first > 0) & (second > 0)
    own = _by_label(same.xx + same.diagonal[0], same.yy + same.diagonal[1], shared)
    pairs = _by_label(first**2, second**2, shared)
    apart, pairs_apart = same.xy.sum(), first @ second
    extreme = 0
    for columns in batches(labels.draws.shape[1]):
        draws = labels.draws[:, columns].astype(float)
        signs = draws[layout.questions] * labels.factor[:, None]
        linear, signed = forms.rows @ signs, forms.signed[columns]
        size = (len(signs) + signs.sum(axis=0)) / 2
        other = len(signs) - size
        x, y = ((own[0] + turn * (own[1] @ draws)) / 2 for turn in (1, -1))
        pairs_x, pairs_y = ((pairs[0] + turn * (pairs[1] @ draws)) / 2 for turn in (1, -1))
        xx = ((total + 2 * linear + signed) / 4 - x) / (size**2 - pairs_x)
        yy = ((total - 2 * linear + signed) / 4 - y) / (other**2 - pairs_y)
        xy = ((total - signed) / 4 - apart) / (size * other - pairs_apart)
        extreme += int((xx + yy - 2 * xy >= value - _ROUNDING * total / len(signs) ** 2).sum())
    return float((extreme + 1) / (labels.draws.shape[1] + 1))


def _by_label(first: Floats, second: Floats, shared: NDArray[np.bool_]) -> tuple[float, Floats]:
    """(t, d), so that the first side has (t + dᵀl)/2 of the questions' quantities under labels l, the second the rest.

    `first` and `second` are a question's quantities on either side.
    """
    return float((first + second).sum()), np.where(shared, first - second, first + second)
