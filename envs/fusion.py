"""From several rankings to one. Pure functions over corpus positions, the same on every retriever.

A tie is always broken the same way: the higher score first, then the better rank in any of the rankings, then the
earlier ranking. Within one ranking, documents of equal score stand in corpus order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .plan import Fusion

RRF_CONSTANT = 60
"""Reciprocal rank fusion adds 1 / (60 + rank), rank from 1 (Cormack, Clarke and Büttcher, SIGIR 2009)."""


class Scored(NamedTuple):
    """One ranking, best first: corpus positions (n,) int64 and their scores (n,) float64."""

    documents: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]

    def cut(self, k: int) -> "Scored":
        """The first k places."""
        return Scored(self.documents[:k], self.scores[:k])

    def without(self, document: int) -> "Scored":
        """The ranking as it is where the corpus does not hold that document."""
        kept = self.documents != document
        return Scored(self.documents[kept], self.scores[kept])


NOTHING = Scored(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))
"""The ranking of a probe that says nothing."""


def best(documents: npt.NDArray[np.int64], scores: npt.NDArray[np.float64], k: int) -> Scored:
    """The k best of the scored documents (both of shape (n,)), equal scores in corpus order."""
    if len(scores) > k:
        worst_kept = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = np.flatnonzero(scores >= worst_kept)
        documents, scores = documents[kept], scores[kept]
    order = np.lexsort((documents, -scores))[:k]
    return Scored(documents[order], scores[order])


def fuse(rankings: Sequence[Scored], how: Fusion, k: int) -> Scored:
    """Fuse rankings into one of at most k documents, none twice.

    - max: a document's best score in any ranking.
    - sum: the sum of its scores; a ranking that does not hold it adds nothing.
    - rrf: Σ 1 / (60 + rank); scores are ignored.
    - interleave: first places of all rankings in order, then second places, …, duplicates skipped; the score is
      1 / place, so that it falls with the place and says nothing else.

    The rankings are taken as they are: cut each to what it may contribute before.
    """
    if len(rankings) == 1 and how in ("max", "sum"):
        return rankings[0].cut(k)
    if how == "interleave":
        order = list(_first_seen(rankings))[:k]
        return _scored([(document, 1.0 / place) for place, document in enumerate(order, start=1)])
    values: dict[int, float] = {}
    for ranking in rankings:
        for rank, (document, score) in enumerate(_pairs(ranking), start=1):
            if how == "max":
                values[document] = max(score, values.get(document, score))
            elif how == "sum":
                values[document] = values.get(document, 0.0) + score
            else:
                values[document] = values.get(document, 0.0) + 1.0 / (RRF_CONSTANT + rank)
    ordered = sorted(_first_seen(rankings), key=lambda document: -values[document])
    return _scored([(document, values[document]) for document in ordered[:k]])


def _first_seen(rankings: Sequence[Scored]) -> dict[int, None]:
    """Every document once, by its best rank in any ranking, then by the position of that ranking."""
    columns = [ranking.documents.tolist() for ranking in rankings]
    depth = max((len(column) for column in columns), default=0)
    return {column[place]: None for place in range(depth) for column in columns if place < len(column)}


def _pairs(ranking: Scored) -> "zip[tuple[int, float]]":
    return zip(ranking.documents.tolist(), ranking.scores.tolist(), strict=True)


def _scored(pairs: Sequence[tuple[int, float]]) -> Scored:
    documents = np.array([document for document, _ in pairs], dtype=np.int64)
    return Scored(documents, np.array([score for _, score in pairs], dtype=np.float64))
