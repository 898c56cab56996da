"""RE-MMD² between two sets of queries: estimate, interval and permutation test (Yuan et al., appendix C).

`PooledSides` gives the side and the question of every query: first the n queries of one side, then the m of the other.
A kernel is its matrix (n + m, n + m). The unit of resampling is the question: the queries of a question stay together.

Eq. 6 is unbiased only for independent sides, and sides that answer the same questions are not independent: among the
n·m pairs between the sides, n are queries of the same question, which are alike because they ask the same. The
estimator "different" takes the same three means over pairs of *different* questions only. It is unbiased in both cases
and equals eq. 6 where no question has two queries. "eq6" is eq. 6 as written, as in the paper's figure 3.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Floats = NDArray[np.float64]
Vectors = NDArray[np.float32] | Floats
Progress = Callable[[int, int], None]
Estimator = Literal["different", "eq6"]

LEVEL = 0.95
_DRAWS_AT_ONCE = 128
_EQUAL = 1e-10
"""Squared distances below this are rounding errors of equal vectors."""
_ROUNDING = 1e-10
"""Permuted values within this of the observed one, relative to the kernel's mean, count as equal."""


@dataclass(frozen=True, slots=True)
class PooledSides:
    """Two pooled sides: n queries of the first, then m of the second. `questions` (n + m) has question numbers."""

    n: int
    questions: NDArray[np.int64]

    @property
    def sides(self) -> NDArray[np.int8]:
        """+1 for queries of the first side, −1 for the second."""
        return np.where(np.arange(len(self.questions)) < self.n, 1, -1).astype(np.int8)

    def counts(self) -> tuple[Floats, Floats]:
        """How many queries each question has on the first and on the second side."""
        size = int(self.questions.max()) + 1
        first, second = (
            np.bincount(part, minlength=size).astype(float)
            for part in (self.questions[: self.n], self.questions[self.n :])
        )
        return first, second


@dataclass(frozen=True, slots=True)
class Drift:
    """RE-MMD² between two sides. Values are squared distances in the kernel's space; they can be below 0."""

    value: float
    low: float | None
    """95% bootstrap interval of `value`; None where no resample could be computed."""
    high: float | None
    p: float
    """(b + 1) / (permutations + 1): never 0. One-sided: only a large `value` is evidence."""


def gaussian(vectors: Vectors, sigma: float) -> Floats:
    """k(x, y) = exp(−|x − y|² / 2σ²) of vectors (queries, d): eq. 7."""
    points: Floats = vectors.astype(np.float64)
    squares = (points**2).sum(axis=1)
    values: Floats = points @ points.T
    values *= -2
    values += squares[:, None]
    values += squares
    np.maximum(values, 0, out=values)
    values /= -2 * sigma**2
    return np.exp(values, out=values)


def linear(features: "csr_matrix") -> Floats:
    """k(x, y) = ⟨x, y⟩ of the rows of a sparse matrix (queries, words): eq. 8."""
    product: Floats = (features @ features.T).toarray()
    return product


def median_sigma(sides: Sequence[Vectors], seed: int, sample: int) -> float:
    """The median pairwise distance among about `sample` vectors, drawn as evenly as possible from all `sides`.

    0 where more than half of the pairs are equal.
    """
    rng = np.random.default_rng([seed, 2])
    share = math.ceil(sample / len(sides))
    parts = [side if len(side) <= share else side[rng.choice(len(side), share, replace=False)] for side in sides]
    vectors = np.concatenate(parts).astype(float)
    squares = (vectors**2).sum(axis=1)
    squared_distances = squares[:, None] + squares - 2 * vectors @ vectors.T
    middle = float(np.median(squared_distances[np.triu_indices(len(vectors), 1)]))
    return math.sqrt(middle) if middle > _EQUAL else 0.0


def permuted_signs(layout: PooledSides, draws: int, seed: int) -> NDArray[np.int8]:
    """(queries, draws): the side of each query, +1 or −1, if the two retrievers have the same distribution of queries.

    A question with queries on both sides has its sides swapped with probability ½ (paired). Questions on one side only
    are permuted between the sides, which keep their number of them (unpaired). Without shared questions this is the
    usual two-sample permutation; if all questions are shared, it is a sign flip. The sides keep their number of
    questions, so a difference in *how many* questions succeed is no evidence by itself.
    """
    rng = np.random.default_rng(seed)
    first, second = layout.counts()
    shared = (first > 0) & (second > 0)
    unshared = np.flatnonzero(~shared & (first + second > 0))
    side_labels = np.where(first[unshared] > 0, 1, -1).astype(np.int8)
    signs = np.ones((len(first), draws), dtype=np.int8)
    for columns in _slices(draws, 64):  # the size of a block decides which numbers are drawn
        width = columns.stop - columns.start
        signs[shared, columns] = 1 - 2 * rng.integers(0, 2, size=(int(shared.sum()), width), dtype=np.int8)
        signs[unshared, columns] = rng.permuted(np.tile(side_labels, (width, 1)), axis=1).T
    factor = np.where(shared[layout.questions], layout.sides, 1).astype(np.int8)
    return signs[layout.questions] * factor[:, None]


def drawn_weights(layout: PooledSides, resamples: int, seed: int) -> NDArray[np.uint8]:
    """(questions, resamples): how often each question is drawn with replacement, stratified by kind.

    The kinds are: questions on both sides (whose queries stay together), on the first only, on the second only.
    """
    rng = np.random.default_rng([seed, 1])
    first, second = layout.counts()
    kind = (first > 0) + 2 * (second > 0)
    weights = np.zeros((len(first), resamples), dtype=np.uint8)
    for members in (np.flatnonzero(kind == number) for number in (1, 2, 3)):
        for draw in range(resamples if len(members) else 0):
            drawn = np.bincount(rng.integers(0, len(members), len(members)), minlength=len(members))
            weights[members, draw] = np.minimum(drawn, np.iinfo(np.uint8).max)
    return weights


def compare(
    matrix: Floats,
    layout: PooledSides,
    *,
    permutations: int,
    resamples: int,
    seed: int,
    estimator: Estimator = "different",
    progress: Progress = lambda done, total: None,
) -> Drift:
    """Estimate RE-MMD² with its interval and p from a kernel's matrix. Deterministic for the same queries and seed.

    Raises ValueError for a side with fewer than two questions, no permutations or no resamples.
    """
    first, second = layout.counts()
    sides = int((first > 0).sum()), int((second > 0).sum())
    if min(sides) < 2:
        raise ValueError(f"the sides have {sides[0]} and {sides[1]} questions; the estimate takes at least 2 of each")
    if permutations < 1 or resamples < 1:
        raise ValueError(f"{permutations} permutations and {resamples} resamples; expected at least 1 of each")
    pairs = _Pairs(matrix, layout.questions, estimator)
    ones = layout.sides[:, None] > 0
    value = float(pairs.distance(ones, ~ones)[0])
    tolerance = _ROUNDING * float(matrix.mean())
    signs, weights = permuted_signs(layout, permutations, seed), drawn_weights(layout, resamples, seed)
    extreme, resampled = 0, []
    for columns in _slices(permutations, _DRAWS_AT_ONCE):
        extreme += int((pairs.distance(signs[:, columns] > 0, signs[:, columns] < 0) >= value - tolerance).sum())
        progress(columns.stop, permutations + resamples)
    for columns in _slices(resamples, _DRAWS_AT_ONCE):
        drawn = weights[layout.questions, columns]
        resampled.append(pairs.distance(drawn * ones, drawn * ~ones))
        progress(permutations + columns.stop, permutations + resamples)
    return Drift(value, *_interval(np.concatenate(resampled)), (extreme + 1) / (permutations + 1))


class _Pairs:
    """The pairs of queries that an estimator takes the kernel's means over."""

    def __init__(self, matrix: Floats, questions: NDArray[np.int64], estimator: Estimator) -> None:
        from scipy.sparse import csr_matrix

        count = len(questions)
        same = questions[:, None] == questions
        self.members = csr_matrix((np.ones(count), (questions, np.arange(count))))
        """(questions, queries): 1 where a query is of a question."""
        self.across = np.where(same, 0.0, matrix)
        self.within = None
        if estimator == "eq6":
            np.fill_diagonal(same, False)
            self.within = csr_matrix(np.where(same, matrix, 0.0))

    def distance(self, a: NDArray[np.generic], b: NDArray[np.generic]) -> Floats:
        """The value for each column of the weights (queries, draws) on the first side, `a`, and on the second, `b`.

        A question drawn w times counts as w questions that are never compared with each other, because a query paired
        with its own copy does not occur in eq. 6. NaN where no pair is left.
        """
        means = [self._mean(x.astype(float), y.astype(float)) for x, y in ((a, a), (b, b), (a, b))]
        distance: Floats = means[0] + means[1] - 2 * means[2]
        return distance

    def _mean(self, x: Floats, y: Floats) -> Floats:
        of_x, of_y = self.members @ x, self.members @ y
        total = np.einsum("qd,qd->d", x, self.across @ y)
        count = x.sum(axis=0) * y.sum(axis=0) - (of_x * of_y).sum(axis=0)
        if self.within is not None:  # a question's copies are not compared: the weight of its pairs is w and not w²
            drawn = (y > 0).astype(float)
            itself = np.where(drawn, x, 0).sum(axis=0)  # 0 between the sides
            total += np.einsum("qd,qd->d", x, self.within @ drawn)
            count += (of_x * (self.members @ drawn)).sum(axis=0) - itself
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(count > 0, total / count, np.nan)


def _interval(values: Floats) -> tuple[float | None, float | None]:
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
