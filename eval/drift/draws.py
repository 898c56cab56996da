"""Permutations and bootstrap resamples for the p-value and the interval of a drift.

The unit of resampling is the question, never a single query: the queries of one question stay together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_DRAWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class PooledSides:
    """Two pooled sides: n queries of the first, then m of the second. `questions` (n + m) has question numbers."""

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
    """Signs in permuted layouts: query i in draw d has the sign `draws[questions[i], d] * factor[i]`."""

    draws: NDArray[np.int8]
    factor: NDArray[np.int8]


def permuted_labels(layout: PooledSides, draws: int, seed: int) -> Labels:
    """Permuted sides under the null hypothesis that the two retrievers have the same distribution of queries.

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
    for columns in batches(draws):
        width = columns.stop - columns.start
        signs[shared, columns] = 1 - 2 * rng.integers(0, 2, size=(int(shared.sum()), width), dtype=np.int8)
        signs[unshared, columns] = rng.permuted(np.tile(side_labels, (width, 1)), axis=1).T
    return Labels(signs, np.where(shared[layout.questions], layout.sides, 1).astype(np.int8))


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


def batches(count: int) -> Iterator[slice]:
    """Slices of `count` draws, a few at a time."""
    for start in range(0, count, _DRAWS_AT_ONCE):
        yield slice(start, min(start + _DRAWS_AT_ONCE, count))
