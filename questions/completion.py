"""Matrix completion for the answerability matrix (seed 002, section 4.3.2, left there as future work).

Soft-impute (Mazumder, Hastie and Tibshirani, JMLR 2010): fill the unknown entries with the present estimate, take the
singular value decomposition, shrink the singular values, and repeat. What is unknown and not supported by any known
entry tends to 0, "does not answer", which is what most pairs are. The estimate is kept as factors and the filled matrix
as a sparse one plus these factors, so that memory grows with the known entries and not with the whole matrix.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, svds

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_BLOCK = 2**22
"""Entries of the completed matrix that are looked at together."""


@dataclass(frozen=True, slots=True)
class Completed:
    """U · diag(s) · Vᵀ."""

    left: Floats
    """(rows, r)."""
    values: Floats
    """(r,) singular values."""
    right: Floats
    """(r, columns)."""

    def at(self, rows: Integers, columns: Integers) -> Floats:
        """The completed entries at these places."""
        found: Floats = np.einsum("nr,r,rn->n", self.left[rows], self.values, self.right[:, columns])
        return found

    def at_least(self, cut: float) -> Iterator[tuple[int, int]]:
        """(row, column) of every entry that is at least `cut`."""
        step = max(1, _BLOCK // max(1, self.right.shape[1]))
        for start in range(0, len(self.left), step):
            block = (self.left[start : start + step] * self.values) @ self.right
            for row, column in zip(*np.nonzero(block >= cut), strict=True):
                yield start + int(row), int(column)


def complete(
    rows: Integers,
    columns: Integers,
    known: Floats,
    shape: tuple[int, int],
    rank: int,
    shrinkage: float,
    steps: int = 200,
    tolerance: float = 1e-5,
) -> Completed:
    """Complete a matrix of which `known[i]` stands at (`rows[i]`, `columns[i]`), no place twice.

    It ends where a step changes the estimate by less than `tolerance` of its norm, or after `steps`.
    """
    estimate = Completed(np.zeros((shape[0], 0)), np.zeros(0), np.zeros((0, shape[1])))
    for _ in range(steps if known.any() else 0):
        rest = csr_array((known - estimate.at(rows, columns), (rows, columns)), shape=shape)
        left, values, right = _svd(rest, estimate, rank)
        values = np.maximum(values - shrinkage, 0)
        kept = values > 0
        after = Completed(left[:, kept], values[kept], right[kept])
        change = _distance(after, estimate)
        estimate = after
        if change <= tolerance * max(1.0, float(np.linalg.norm(estimate.values))):
            break
    return estimate


def _svd(rest: csr_array, low: Completed, rank: int) -> tuple[Floats, Floats, Floats]:
    """The largest singular values, and their vectors, of `rest` plus the low-rank matrix."""
    shape = rest.shape
    if min(shape) <= rank + 1:
        whole = rest.toarray() + (low.left * low.values) @ low.right
        left, values, right = np.linalg.svd(whole, full_matrices=False)
        return left[:, :rank], values[:rank], right[:rank]

    def forth(vectors: Floats) -> Floats:
        product: Floats = rest @ vectors + low.left @ (low.values[:, None] * (low.right @ vectors))
        return product

    def back(vectors: Floats) -> Floats:
        product: Floats = rest.T @ vectors + low.right.T @ (low.values[:, None] * (low.left.T @ vectors))
        return product

    operator = LinearOperator(
        shape,
        matvec=lambda vector: forth(vector.reshape(-1, 1))[:, 0],
        rmatvec=lambda vector: back(vector.reshape(-1, 1))[:, 0],
        matmat=forth,
        rmatmat=back,
        dtype=np.float64,
    )
    start = np.random.default_rng(0).standard_normal(min(shape))  # the same call gives the same factors
    left, values, right = svds(operator, k=rank, v0=start)
    return left, values, right


def _distance(one: Completed, other: Completed) -> float:
    """Frobenius norm of the difference, from the factors alone."""
    cross = (one.values[:, None] * (one.left.T @ other.left)) @ (other.values[:, None] * (other.right @ one.right.T))
    squared = float(np.sum(one.values**2) + np.sum(other.values**2) - 2 * np.trace(cross))
    return float(np.sqrt(max(0.0, squared)))
