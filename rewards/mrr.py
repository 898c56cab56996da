"""Reciprocal rank; its mean over questions is MRR."""

from collections.abc import Mapping, Sequence

from .ranking import top


def mrr(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = None) -> float:
    """1 / place of the first relevant document (grade > 0) among the first k, else 0; trec_eval's `recip_rank`.

    k None looks through the whole ranking (Voorhees 1999). Raises ValueError as `ranking.top`.
    """
    places = (place for place, document in enumerate(top(ranking, k), start=1) if judged.get(document, 0) > 0)
    first = next(places, None)
    return 1 / first if first is not None else 0.0
