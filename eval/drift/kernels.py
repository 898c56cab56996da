"""The two kernels of RE-MMD² (Yuan et al., eq. 7 and 8), as sums over kernel matrices that are never held in full.

The Gaussian kernel is computed block by block, each block once, in float64; only products with permuted signs and
bootstrap weights are float32. The linear kernel needs no matrix: aᵀKa = |Fᵀa|² for features F.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .draws import Floats, Labels, PooledSides
from .mmd import Forms, Progress

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Vectors = NDArray[np.float32] | Floats
_BLOCK = 2048
_ELEMENTS = 1 << 23
_EQUAL = 1e-10
"""Squared distances below this are rounding errors of equal vectors."""


@dataclass(frozen=True, slots=True)
class Gaussian:
    """k(x, y) = exp(−|x − y|² / 2σ²) of vectors (queries, d)."""

    vectors: Vectors
    sigma: float

    def diagonal(self) -> Floats:
        """1 for every query."""
        return np.ones(len(self.vectors))

    def at(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> Floats:
        """k of the pairs (i, j) of positions."""
        difference = self.vectors[i].astype(float) - self.vectors[j]
        values: Floats = np.exp((difference**2).sum(axis=1) / (-2 * self.sigma**2))
        return values

    def forms(
        self, layout: PooledSides, labels: Labels, weights: NDArray[np.uint8], progress: Progress | None = None
    ) -> Forms:
        """All sums in one pass over the blocks on and above the diagonal."""
        rows = np.zeros(len(self.vectors))
        sums = np.zeros(3)
        signed, drawn = np.zeros(labels.draws.shape[1]), np.zeros((3, weights.shape[1]))
        blocks = [*_blocks(0, layout.n), *_blocks(layout.n, len(self.vectors))]
        done = 0
        for i, left in enumerate(blocks):
            signs, drawn_left = self._signs(layout, labels, left), weights[layout.questions[left]].astype(np.float32)
            for right in blocks[i:]:
                values = self._block(left, right)
                rows[left] += values.sum(axis=1)
                if right != left:
                    rows[right] += values.sum(axis=0)
                between = left.start < layout.n <= right.start
                kind = 2 if between else int(left.start >= layout.n)
                multiplicity = 1 if right == left else 2
                pair_weight = 1 if between else multiplicity
                sums[kind] += pair_weight * values.sum()
                single = values.astype(np.float32)
                signed += multiplicity * _form(signs, single, self._signs(layout, labels, right))
                drawn[kind] += pair_weight * _form(
                    drawn_left, single, weights[layout.questions[right]].astype(np.float32)
                )
                done += 1
                if progress:
                    progress(done, len(blocks) * (len(blocks) + 1) // 2)
        return Forms(rows, float(sums[0]), float(sums[1]), float(sums[2]), signed, drawn)

    def _block(self, left: slice, right: slice) -> Floats:
        """k of all queries in `left` with all in `right`."""
        x, y = self.vectors[left].astype(float), self.vectors[right].astype(float)
        values: Floats = x @ y.T
        values *= -2
        values += (x**2).sum(axis=1)[:, None]
        values += (y**2).sum(axis=1)
        np.maximum(values, 0, out=values)
        values /= -2 * self.sigma**2
        return np.exp(values, out=values)

    @staticmethod
    def _signs(layout: PooledSides, labels: Labels, block: slice) -> NDArray[np.float32]:
        signs = labels.draws[layout.questions[block]] * labels.factor[block, None]
        return signs.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Linear:
    """k(x, y) = ⟨x, y⟩ of the rows of a sparse matrix (queries, words) in CSR form."""

    features: "csr_matrix"

    def diagonal(self) -> Floats:
        """|x|² of every query."""
        return np.asarray(self.features.multiply(self.features).sum(axis=1)).ravel()

    def at(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> Floats:
        """k of the pairs (i, j) of positions."""
        return np.asarray(self.features[i].multiply(self.features[j]).sum(axis=1)).ravel()

    def forms(
        self, layout: PooledSides, labels: Labels, weights: NDArray[np.uint8], progress: Progress | None = None
    ) -> Forms:
        """All sums in closed form from sums of feature vectors, a few draws at a time."""
        features, x, y = self.features, self.features[: layout.n], self.features[layout.n :]
        sum_x, sum_y = (np.asarray(part.sum(axis=0)).ravel() for part in (x, y))
        width = max(1, _ELEMENTS // max(features.shape))
        signed, drawn = np.zeros(labels.draws.shape[1]), np.zeros((3, weights.shape[1]))
        steps = len(signed) + weights.shape[1]
        for start in range(0, len(signed), width):
            part = slice(start, start + width)
            signs = labels.draws[:, part][layout.questions] * labels.factor[:, None]
            sums = features.T @ signs.astype(float)
            signed[part] = _dots(sums, sums)
            if progress:
                progress(start, steps)
        for start in range(0, weights.shape[1], width):
            part = slice(start, start + width)
            query_weights = weights[:, part][layout.questions].astype(float)
            a, b = x.T @ query_weights[: layout.n], y.T @ query_weights[layout.n :]
            drawn[:, part] = _dots(a, a), _dots(b, b), _dots(a, b)
            if progress:
                progress(len(signed) + start, steps)
        return Forms(
            features @ (sum_x + sum_y), float(sum_x @ sum_x), float(sum_y @ sum_y), float(sum_x @ sum_y), signed, drawn
        )


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


def _form(left: NDArray[np.float32], values: NDArray[np.float32], right: NDArray[np.float32]) -> Floats:
    """aᵀKb for each column a of `left` and b of `right`."""
    form: Floats = np.multiply(left, values @ right).sum(axis=0, dtype=np.float64)
    return form


def _dots(a: Floats, b: Floats) -> Floats:
    dots: Floats = np.einsum("vd,vd->d", a, b)
    return dots


def _blocks(start: int, end: int) -> list[slice]:
    return [slice(offset, min(offset + _BLOCK, end)) for offset in range(start, end, _BLOCK)]
