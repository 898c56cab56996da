"""Fuses several rankings into one. Pure functions over corpus positions, the same for every retriever.

Documents are ordered by score; ties are broken by the best rank in any of the rankings, then by the earlier ranking.
Within one ranking, documents of equal score are in corpus order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..plan import RRF_CONSTANT, Fusion


class Scored(NamedTuple):
    """One ranking, best first: corpus positions (n,) int64 and their scores (n,) float64."""

    documents: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]

    def cut(self, k: int) -> "Scored":
        return Scored(self.documents[:k], self.scores[:k])

    def without(self, documents: Sequence[int]) -> "Scored":
        """The ranking as if the corpus did not hold these documents."""
        mask = np.isin(self.documents, documents, invert=True)
        return Scored(self.documents[mask], self.scores[mask])


NOTHING = Scored(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))
"""The empty ranking."""


def best(documents: npt.NDArray[np.int64], scores: npt.NDArray[np.float64], k: int) -> Scored:
    """The k best of the scored documents (both of shape (n,)), equal scores in corpus order."""
    if len(scores) > k:
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        candidates = np.flatnonzero(scores >= threshold)
        documents, scores = documents[candidates], scores[candidates]
    order = np.lexsort((documents, -scores))[:k]
    return Scored(documents[order], scores[order])


def fuse(rankings: Sequence[Scored], method: Fusion, k: int) -> Scored:
    """Fuse rankings into one of at most k distinct documents.

    - max: a document's best score in any ranking.
    - sum: the sum of its scores; a ranking without it adds nothing.
    - rrf: Σ 1 / (60 + rank); scores are ignored.
    - interleave: the first document of every ranking in order, then the second, …, duplicates skipped; the score is
      1 / rank, so that it falls with the rank and carries no other information.

    The rankings are used in full: cut each to its allowed depth first.
    """
    if len(rankings) == 1 and method in ("max", "sum"):
        return rankings[0].cut(k)
    if method == "interleave":
        order = list(_by_best_rank(rankings))[:k]
        return _scored([(document, 1.0 / rank) for rank, document in enumerate(order, start=1)])
    values: dict[int, float] = {}
    for ranking in rankings:
        pairs = zip(ranking.documents.tolist(), ranking.scores.tolist(), strict=True)
        for rank, (document, score) in enumerate(pairs, start=1):
            if method == "max":
                values[document] = max(score, values.get(document, score))
            elif method == "sum":
                values[document] = values.get(document, 0.0) + score
            else:
                values[document] = values.get(document, 0.0) + 1.0 / (RRF_CONSTANT + rank)
    ordered = sorted(_by_best_rank(rankings), key=lambda document: -values[document])
    return _scored([(document, values[document]) for document in ordered[:k]])


def _by_best_rank(rankings: Sequence[Scored]) -> dict[int, None]:
    """Every document once, by its best rank in any ranking, then by the position of that ranking."""
    columns = [ranking.documents.tolist() for ranking in rankings]
    depth = max((len(column) for column in columns), default=0)
    return {column[rank]: None for rank in range(depth) for column in columns if rank < len(column)}


def _scored(pairs: Sequence[tuple[int, float]]) -> Scored:
    documents = np.array([document for document, _ in pairs], dtype=np.int64)
    return Scored(documents, np.array([score for _, score in pairs], dtype=np.float64))
