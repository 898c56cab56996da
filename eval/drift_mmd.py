"""RE-MMD² between two sets of queries: the estimate, its interval, and whether chance explains it (seed 003, eq. 6).

`Layout` says which side and which question every query belongs to: first the n queries of one side, then the m of the
other. A kernel answers with sums over its matrix and never holds more of that than a block, so that what is exact for
a hundred queries is as exact for a hundred thousand. Nothing here is approximated but the draws themselves: every
permutation and every resample is summed over all pairs of queries.

Two sides that answer the same questions are not independent, and eq. 6 is unbiased only for independent ones: it
counts each question's own two queries, which are alike because they ask the same, n times among n·m pairs. `across`
is the same three means over pairs of *different* questions, which is unbiased either way.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]

LEVEL = 0.95
_DRAWS_AT_ONCE = 64
_PAIRS_AT_ONCE = 1 << 16
_ROUNDING = 1e-8
"""Permuted values are summed from float32 products; closer to the observed one than this, relative to the mean of the
kernel, they count as equal to it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Two pooled sides. `questions` (n + m) numbers the question of every query; equal numbers are one question."""

    n: int
    questions: NDArray[np.int64]

    @property
    def m(self) -> int:
        """Queries of the second side."""
        return len(self.questions) - self.n

    @property
    def sides(self) -> NDArray[np.int8]:
        """+1 for queries of the first side, −1 for the second."""
        return np.where(np.arange(len(self.questions)) < self.n, 1, -1).astype(np.int8)

    def counts(self) -> tuple[Floats, Floats]:
        """How many queries each question has on the first and on the second side."""
        size = int(self.questions.max()) + 1
        first, second = np.bincount(self.questions[: self.n], minlength=size), np.bincount(self.questions[self.n :])
        return first.astype(float), np.pad(second, (0, size - len(second))).astype(float)


class Labels(NamedTuple):
    """Signs in permuted layouts: that of query i in draw d is `draws[questions[i], d] * factor[i]`."""

    draws: NDArray[np.int8]
    factor: NDArray[np.int8]


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
    """Eq. 6: over all pairs of queries."""
    low: float | None
    """95% bootstrap interval of `value`; None where no resample could be computed."""
    high: float | None
    across: float
    """Over pairs of queries of different questions: unbiased also where both sides answer the same questions."""
    across_low: float | None
    across_high: float | None
    p: float
    """(b + 1) / (permutations + 1): never 0. One-sided: only a large distance is evidence."""
    within: tuple[float, float]
    """Mean kernel value within each side; with `between`, `value` = within[0] + within[1] − 2·between."""
    between: float


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
    value, across, means = _from_sums(seen, all_once, same, layout)
    intervals: list[tuple[float | None, float | None]] = [
        _interval(rows) for rows in _resampled(forms, weights, same, layout)
    ]
    return Drift(
        value=float(value[0]),
        low=intervals[0][0],
        high=intervals[0][1],
        across=float(across[0]),
        across_low=intervals[1][0],
        across_high=intervals[1][1],
        p=_p(kernel.diagonal(), layout, labels, forms, float(value[0])),
        within=(float(means[0, 0]), float(means[1, 0])),
        between=float(means[2, 0]),
    )


def permuted_labels(layout: Layout, draws: int, seed: int) -> Labels:
    """Sides as they could have been if the two retrievers had one dialect.

    A question with queries on both sides keeps them apart and has the two swapped with probability ½ (paired).
    Questions that only one side has are dealt out anew, as many to each side as it had (unpaired). Without a shared
    question this is the usual two-sample permutation, with every question shared it is a sign flip; the sizes of the
    sides stay, so that a difference in *how many* questions succeed is no evidence by itself.
    """
    rng = np.random.default_rng(seed)
    first, second = layout.counts()
    shared = (first > 0) & (second > 0)
    alone = np.flatnonzero(~shared & (first + second > 0))
    dealt = np.where(first[alone] > 0, 1, -1).astype(np.int8)
    found = np.ones((len(first), draws), dtype=np.int8)
    for start in range(0, draws, _DRAWS_AT_ONCE):
        columns = slice(start, min(start + _DRAWS_AT_ONCE, draws))
        width = columns.stop - columns.start
        found[shared, columns] = 1 - 2 * rng.integers(0, 2, size=(int(shared.sum()), width), dtype=np.int8)
        found[alone, columns] = rng.permuted(np.tile(dealt, (width, 1)), axis=1).T
    return Labels(found, np.where(shared[layout.questions], layout.sides, 1).astype(np.int8))


def drawn_weights(layout: Layout, resamples: int, seed: int) -> NDArray[np.uint8]:
    """(questions, resamples): how often a question is drawn with replacement, among those of its kind.

    The kinds are the questions of both sides, which keep their queries together, and those of either alone.
    """
    rng = np.random.default_rng([seed, 1])
    first, second = layout.counts()
    kind = (first > 0) + 2 * (second > 0)
    found = np.zeros((len(first), resamples), dtype=np.uint8)
    for members in (np.flatnonzero(kind == number) for number in (1, 2, 3)):
        for draw in range(resamples if len(members) else 0):
            drawn = np.bincount(rng.integers(0, len(members), len(members)), minlength=len(members))
            found[members, draw] = np.minimum(drawn, np.iinfo(np.uint8).max)
    return found


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
    diagonal = np.stack(
        [np.bincount(questions[part], own[part], minlength=size) for part in (slice(None, n), slice(n, None))]
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
    """Eq. 6, the same across questions, and the three means of eq. 6, for each column of `sums` and `weights`.

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
    return _distance(means), _distance(across), means


def _distance(means: Floats) -> Floats:
    distance: Floats = means[0] + means[1] - 2 * means[2]
    return distance


def _resampled(forms: Forms, weights: NDArray[np.uint8], same: _Same, layout: Layout) -> tuple[Floats, Floats]:
    values, across = [], []
    for columns in _columns(weights.shape[1]):
        found = _from_sums(forms.drawn[:, columns], weights[:, columns].astype(float), same, layout)
        values.append(found[0])
        across.append(found[1])
    return np.concatenate(values), np.concatenate(across)


def _interval(values: Floats) -> tuple[float | None, float | None]:
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _p(diagonal: Floats, layout: Layout, labels: Labels, forms: Forms, value: float) -> float:
    """Share of the permuted layouts, the seen one among them, whose distance is at least that of the seen one."""
    total = forms.xx + forms.yy + 2 * forms.xy
    extreme = 0
    for columns in _columns(labels.draws.shape[1]):
        signs = labels.draws[:, columns][layout.questions] * labels.factor[:, None].astype(float)
        linear, signed = forms.rows @ signs, forms.signed[columns]
        size = (len(signs) + signs.sum(axis=0)) / 2
        other = len(signs) - size
        own = (diagonal.sum() + diagonal @ signs) / 2
        xx = ((total + 2 * linear + signed) / 4 - own) / (size * (size - 1))
        yy = ((total - 2 * linear + signed) / 4 - (diagonal.sum() - own)) / (other * (other - 1))
        xy = (total - signed) / 4 / (size * other)
        extreme += int((xx + yy - 2 * xy >= value - _ROUNDING * total / len(signs) ** 2).sum())
    return (extreme + 1) / (labels.draws.shape[1] + 1)


def _columns(count: int) -> Iterator[slice]:
    for start in range(0, count, _DRAWS_AT_ONCE):
        yield slice(start, min(start + _DRAWS_AT_ONCE, count))
