"""Matrix completion for the answerability matrix (the QB-RAG paper, section 4.3.2, left there as future work).

Soft-impute (Mazumder, Hastie and Tibshirani, JMLR 2010): fill the unknown entries with the current estimate, take the
singular value decomposition, shrink the singular values, and repeat. An unknown entry that no known entry supports
tends to 0, "does not answer", which holds for most pairs. The estimate is stored as factors, and the filled matrix as a
sparse matrix plus these factors, so memory grows with the number of known entries and not with the size of the matrix.
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
"""Entries of the completed matrix that are computed at once."""


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
        """The completed entries at (rows[i], columns[i])."""
        entries: Floats = np.einsum("nr,r,rn->n", self.left[rows], self.values, self.right[:, columns])
        return entries

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
    observed: Floats,
    shape: tuple[int, int],
    rank: int,
    shrinkage: float,
    steps: int = 200,
    tolerance: float = 1e-5,
) -> Completed:
    """Complete a matrix of which `observed[i]` is the entry at (`rows[i]`, `columns[i]`), with no duplicates.

    Stops when a step changes the estimate by at most `tolerance` times its norm, or after `steps` steps.
    """
    estimate = Completed(np.zeros((shape[0], 0)), np.zeros(0), np.zeros((0, shape[1])))
    for _ in range(steps if observed.any() else 0):
        residual = csr_array((observed - estimate.at(rows, columns), (rows, columns)), shape=shape)
        left, values, right = _svd(residual, estimate, rank)
        values = np.maximum(values - shrinkage, 0)
        positive = values > 0
        updated = Completed(left[:, positive], values[positive], right[positive])
        change = _distance(updated, estimate)
        estimate = updated
        if change <= tolerance * max(1.0, float(np.linalg.norm(estimate.values))):
            break
    return estimate


def _svd(residual: csr_array, low_rank: Completed, rank: int) -> tuple[Floats, Floats, Floats]:
    """The largest singular values and their vectors of `residual` + `low_rank`."""
    shape = residual.shape
    if min(shape) <= rank + 1:
        dense = residual.toarray() + (low_rank.left * low_rank.values) @ low_rank.right
        left, values, right = np.linalg.svd(dense, full_matrices=False)
        return left[:, :rank], values[:rank], right[:rank]

    def multiply(vectors: Floats) -> Floats:
        product: Floats = residual @ vectors + low_rank.left @ (low_rank.values[:, None] * (low_rank.right @ vectors))
        return product

    def multiply_transposed(vectors: Floats) -> Floats:
        product: Floats = residual.T @ vectors + low_rank.right.T @ (
            low_rank.values[:, None] * (low_rank.left.T @ vectors)
        )
        return product

    operator = LinearOperator(
        shape,
        matvec=lambda vector: multiply(vector.reshape(-1, 1))[:, 0],
        rmatvec=lambda vector: multiply_transposed(vector.reshape(-1, 1))[:, 0],
        matmat=multiply,
        rmatmat=multiply_transposed,
        dtype=np.float64,
    )
    start = np.random.default_rng(0).standard_normal(min(shape))  # the same call gives the same factors
    left, values, right = svds(operator, k=rank, v0=start)
    return left, values, right


def _distance(a: Completed, b: Completed) -> float:
    """Frobenius norm of the difference, from the factors alone."""
    cross = (a.values[:, None] * (a.left.T @ b.left)) @ (b.values[:, None] * (b.right @ a.right.T))
    squared = float(np.sum(a.values**2) + np.sum(b.values**2) - 2 * np.trace(cross))
    return float(np.sqrt(max(0.0, squared)))
