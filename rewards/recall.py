"""Recall at a depth."""

from collections.abc import Mapping, Sequence

from .ranking import top


def recall(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = 10) -> float:
    """Share of the relevant documents (grade > 0) among the first k, in [0, 1]; trec_eval's `recall_k`.

    0 where nothing is judged relevant. k None judges the whole ranking. Raises ValueError as `ranking.top`.
    """
    relevant = {document for document, grade in judged.items() if grade > 0}
    return len(relevant.intersection(top(ranking, k))) / len(relevant) if relevant else 0.0
