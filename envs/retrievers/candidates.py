"""Ranking with an engine that takes no negative weights.

The terms with positive weights find the candidates, and those with negative weights only lower their scores. So more
candidates are fetched until no other document can enter the ranking.
"""

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .fusion import Scored, best

log = logging.getLogger(__name__)

SPARE, GROWTH = 16, 4


class Candidates(NamedTuple):
    """The best documents of the positive terms."""

    documents: npt.NDArray[np.int64]
    """Corpus positions, (n,)."""
    scores: npt.NDArray[np.float64]
    """Of all terms, (n,)."""
    bound: float
    """No other document scores more."""


Search = Callable[[Mapping[int, int]], Mapping[int, Candidates]]
"""From the numbers of candidates to those of each row."""


def rank_candidates(
    limits: Mapping[int, int], window: int, documents: int, search: Search, window_name: str
) -> dict[int, Scored]:
    """The ranking of each row, at most limits[row] documents with a score above 0.

    A row gets at most `window` candidates of the `documents` of the corpus; a ranking that this cuts is logged with
    `window_name`.
    """
    rankings: dict[int, Scored] = {}
    largest = min(window, documents)
    sizes = {row: min(limit + SPARE, largest) for row, limit in limits.items()}
    while sizes:
        larger: dict[int, int] = {}
        for row, candidates in search(sizes).items():
            above = np.flatnonzero(candidates.scores > 0)
            ranking = rankings[row] = best(candidates.documents[above], candidates.scores[above], limits[row])
            complete = len(ranking.scores) == limits[row] and ranking.scores[-1] > candidates.bound
            if len(candidates.scores) < sizes[row] or complete:
                continue
            if sizes[row] < largest:
                larger[row] = min(GROWTH * sizes[row], largest)
            elif largest < documents:
                log.warning("a ranking was cut at %s", window_name)
        sizes = larger
    return rankings
