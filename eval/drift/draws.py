"""Which query could have been whose: the permutations and resamples behind the p and the interval of a drift.

What is drawn is questions, never single queries: queries of one question belong together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_DRAWS_AT_ONCE = 64


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
    for columns in batches(draws):
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


def batches(count: int) -> Iterator[slice]:
    """`count` draws a few at a time."""
    for start in range(0, count, _DRAWS_AT_ONCE):
        yield slice(start, min(start + _DRAWS_AT_ONCE, count))
