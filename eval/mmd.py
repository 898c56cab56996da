"""RE-MMD² between two sets of queries: estimate, interval and permutation test (Yuan et al., appendix C, eq. 6).

A kernel is its matrix (n + m, n + m): first the n queries of one side, then the m of the other. `questions` (n + m) has
the question number of each query; the unit of resampling is the question, so the queries of a question stay together.

Eq. 6 is unbiased only for independent sides, and sides that answer the same questions are not independent: among the
n·m pairs between the sides, n are queries of the same question, which are alike because they ask the same. Its three
means are therefore taken over pairs of *different* questions. This is unbiased in both cases, and equals eq. 6 as it is
written where no question has two queries.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Floats = NDArray[np.float64]
Questions = NDArray[np.int64]

_DRAWS_AT_ONCE = 64
_EQUAL = 1e-10
"""Squared distances below this are rounding errors of equal vectors."""
_ROUNDING = 1e-10
"""Permuted values within this of the observed one, relative to the kernel's mean, count as equal."""


def gaussian(vectors: NDArray[np.floating], sigma: float) -> Floats:
    """k(x, y) = exp(−|x − y|² / 2σ²) of vectors (queries, d): eq. 7."""
    values = _squared_distances(vectors)
    values /= -2 * sigma**2
    return np.exp(values, out=values)


def linear(features: "csr_matrix") -> Floats:
    """k(x, y) = ⟨x, y⟩ of the rows of a sparse matrix (queries, words): eq. 8."""
    product: Floats = (features @ features.T).toarray()
    return product


def median_sigma(sides: Sequence[NDArray[np.floating]], seed: int, sample: int) -> float:
    """The median pairwise distance among about `sample` vectors, drawn as evenly as possible from all `sides`.

    0 where more than half of the pairs are equal.
    """
    rng = np.random.default_rng([seed, 2])
    share = math.ceil(sample / len(sides))
    parts = [side if len(side) <= share else side[rng.choice(len(side), share, replace=False)] for side in sides]
    distances = _squared_distances(np.concatenate(parts))
    middle = float(np.median(distances[np.triu_indices(len(distances), 1)]))
    return math.sqrt(middle) if middle > _EQUAL else 0.0


def permuted_sides(n: int, questions: Questions, draws: int, seed: int) -> NDArray[np.bool_]:
    """(queries, draws): whether a query is on the first side, if both retrievers have the same distribution of queries.

    A question with queries on both sides has its sides swapped with probability ½ (paired). Questions on one side only
    are permuted between the sides, which keep their number of them (unpaired). Without shared questions this is the
    usual two-sample permutation; if all questions are shared, it is a sign flip. The sides keep their number of
    questions, so a difference in *how many* questions succeed is no evidence by itself.
    """
    rng = np.random.default_rng(seed)
    first, second = _on_sides(n, questions)
    shared, alone = first & second, np.flatnonzero(first ^ second)
    own_side = np.where(first[alone], 1, -1)
    signs = np.ones((len(first), draws), dtype=np.int8)
    for start in range(0, draws, _DRAWS_AT_ONCE):
        block = signs[:, start : start + _DRAWS_AT_ONCE]
        width = block.shape[1]
        block[shared] = 1 - 2 * rng.integers(0, 2, size=(int(shared.sum()), width), dtype=np.int8)
        block[alone] = rng.permuted(np.tile(own_side, (width, 1)), axis=1).T
    sides = np.where(np.arange(len(questions)) < n, 1, -1)
    return signs[questions] * np.where(shared[questions], sides, 1)[:, None] > 0


def drawn_weights(n: int, questions: Questions, resamples: int, seed: int) -> Floats:
    """(questions, resamples): how often each question is drawn with replacement, stratified by kind.

    The kinds are: questions on both sides (whose queries stay together), on the first only, on the second only.
    """
    rng = np.random.default_rng([seed, 1])
    first, second = _on_sides(n, questions)
    weights = np.zeros((len(first), resamples))
    for kind in (first & ~second, second & ~first, first & second):
        members = np.flatnonzero(kind)
        for draw in range(resamples if len(members) else 0):
            weights[members, draw] = np.bincount(rng.integers(0, len(members), len(members)), minlength=len(members))
    return weights


def compare(
    matrix: Floats, n: int, questions: Questions, *, permutations: int, resamples: int, seed: int
) -> dict[str, float]:
    """RE-MMD² between two sides from a kernel's matrix, deterministic for the same queries and seed.

    `value` is a squared distance in the kernel's space, which can be below 0; `low` and `high` its 95% bootstrap
    interval, NaN where no resample could be computed; `p` is (b + 1) / (permutations + 1), never 0, and one-sided: only
    a large `value` is evidence.
    """
    from scipy.sparse import csr_matrix

    count = len(questions)
    of_question = csr_matrix((np.ones(count), (questions, np.arange(count))))
    across = np.where(questions[:, None] == questions, 0.0, matrix)

    def distance(a: NDArray[np.generic], b: NDArray[np.generic]) -> Floats:
        """The value per draw for the weights (queries, draws) on the first side, `a`, and on the second, `b`.

        Copies of a question are never compared with each other. NaN where no pair is left.
        """

        def mean(x: Floats, y: Floats) -> Floats:
            pairs: Floats = x.sum(axis=0) * y.sum(axis=0) - ((of_question @ x) * (of_question @ y)).sum(axis=0)
            total: Floats = np.einsum("qd,qd->d", x, across @ y)
            with np.errstate(invalid="ignore"):
                return total / pairs

        x, y = a.astype(float), b.astype(float)
        distances: Floats = mean(x, x) + mean(y, y) - 2 * mean(x, y)
        return distances

    def in_blocks(a: NDArray[np.generic], b: NDArray[np.generic]) -> Floats:
        starts = range(_DRAWS_AT_ONCE, a.shape[1], _DRAWS_AT_ONCE)
        parts = zip(np.split(a, starts, axis=1), np.split(b, starts, axis=1), strict=True)
        return np.concatenate([distance(*part) for part in parts])

    side = (np.arange(count) < n)[:, None]
    value = float(distance(side, ~side)[0])
    permuted = permuted_sides(n, questions, permutations, seed)
    extreme = int((in_blocks(permuted, ~permuted) >= value - _ROUNDING * float(matrix.mean())).sum())
    weights = drawn_weights(n, questions, resamples, seed)[questions]
    low, high = np.nanquantile(in_blocks(weights * side, weights * ~side), [0.025, 0.975])
    return {"value": value, "low": float(low), "high": float(high), "p": (extreme + 1) / (permutations + 1)}


def _squared_distances(vectors: NDArray[np.floating]) -> Floats:
    points = vectors.astype(np.float64)
    squares = (points**2).sum(axis=1)
    distances: Floats = points @ points.T
    distances *= -2
    distances += squares[:, None]
    distances += squares
    return np.maximum(distances, 0, out=distances)


def _on_sides(n: int, questions: Questions) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each question has a query on the first and on the second side."""
    numbers = np.arange(int(questions.max()) + 1)
    return np.isin(numbers, questions[:n]), np.isin(numbers, questions[n:])
