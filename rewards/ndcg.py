"""Normalised discounted cumulative gain."""

from collections.abc import Iterable, Mapping, Sequence
from math import log2
from typing import Literal

from .ranking import top

Gain = Literal["linear", "exponential"]


def ndcg(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = 10, gain: Gain = "linear") -> float:
    """DCG@k / ideal DCG@k, in [0, 1], with DCG@k = Σ_{i ≤ k} g(grade_i) / log2(i + 1) (Järvelin & Kekäläinen 2002).

    `ranking`: document ids, best first. `judged`: document id → grade; a document that is absent or has a grade of 0
    or less gains nothing. The ideal ranks *all* judged documents, found or not, as trec_eval's `ndcg_cut`.
    `gain`: "linear" is g(x) = x (trec_eval), "exponential" is g(x) = 2^x − 1 (Burges et al. 2005).
    0 where nothing is judged relevant. k None judges the whole ranking. Raises ValueError as `ranking.top`.
    """
    gains = {
        document: float(grade if gain == "linear" else 2**grade - 1) for document, grade in judged.items() if grade > 0
    }
    found = _dcg(gains.get(document, 0.0) for document in top(ranking, k))
    return found / _dcg(sorted(gains.values(), reverse=True)[:k]) if gains else 0.0


def _dcg(gains: Iterable[float]) -> float:
    return sum(gain / log2(place + 1) for place, gain in enumerate(gains, start=1))
