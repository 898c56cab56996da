"""Ranking metrics as trec_eval defines them: nDCG, recall, reciprocal rank."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import log2
from typing import Literal

from ..errors import ConfigError

Gain = Literal["linear", "exponential"]


def ndcg(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = 10, gain: Gain = "linear") -> float:
    """DCG@k / ideal DCG@k, in [0, 1], with DCG@k = Σ_{i ≤ k} g(grade_i) / log2(i + 1) (Järvelin & Kekäläinen 2002).

    `ranking`: document ids, best first. `judged`: document id → grade; a document that is absent or has a grade of 0
    or less gains nothing. The ideal ranks *all* judged documents, found or not, as trec_eval's `ndcg_cut`.
    `gain`: "linear" is g(x) = x (trec_eval), "exponential" is g(x) = 2^x − 1 (Burges et al. 2005).
    0 if nothing is judged relevant. k None judges the whole ranking. Raises ValueError as `top`.
    """
    gains = {
        document: float(grade if gain == "linear" else 2**grade - 1) for document, grade in judged.items() if grade > 0
    }
    dcg = _dcg(gains.get(document, 0.0) for document in top(ranking, k))
    return dcg / _dcg(sorted(gains.values(), reverse=True)[:k]) if gains else 0.0


def _dcg(gains: Iterable[float]) -> float:
    return sum(gain / log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def mrr(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = None) -> float:
    """1 / rank of the first relevant document (grade > 0) among the first k, else 0; trec_eval's `recip_rank`.

    k None searches the whole ranking (Voorhees 1999). Raises ValueError as `top`.
    """
    ranks = (rank for rank, document in enumerate(top(ranking, k), start=1) if judged.get(document, 0) > 0)
    first = next(ranks, None)
    return 1 / first if first is not None else 0.0


def recall(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = 10) -> float:
    """Share of the relevant documents (grade > 0) among the first k, in [0, 1]; trec_eval's `recall_k`.

    0 if nothing is judged relevant. k None judges the whole ranking. Raises ValueError as `top`.
    """
    relevant = {document for document, grade in judged.items() if grade > 0}
    return len(relevant.intersection(top(ranking, k))) / len(relevant) if relevant else 0.0


def top(ranking: Sequence[str], k: int | None) -> Sequence[str]:
    """The first `k` documents of a ranking (all if k is None).

    Raises ValueError for k < 1 and for a document that occurs twice in the ranking: it would be rewarded twice.
    """
    if k is not None and k < 1:
        raise ValueError(f"k is {k}; a ranking is judged at k >= 1, or at None for all of it")
    if len(set(ranking)) != len(ranking):
        duplicate = next(document for index, document in enumerate(ranking) if document in ranking[:index])
        raise ValueError(f"document {duplicate!r} stands in the ranking more than once; expected every document once")
    return ranking[:k]


Metric = Callable[[Sequence[str], Mapping[str, int]], float]
"""(ranking of document ids, document id → grade) → [0, 1]."""

KNOWN = "ndcg@k, recall@k, mrr@k (k = 1, 2, …) and mrr"
_NAME = re.compile(r"(ndcg|recall|mrr)@([1-9][0-9]*)|mrr")


def measure(name: str, gain: Gain = "linear") -> Metric:
    """The metric of that name; only nDCG uses `gain`. Raises ConfigError for an unknown name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(
            f"metric {name!r} is not known; known are {KNOWN}. Write for instance 'ndcg@10'.", code="unknown-metric"
        )
    k = int(match[2]) if match[2] else None
    if match[1] == "ndcg":
        return partial(ndcg, k=k, gain=gain)
    return partial(recall if match[1] == "recall" else mrr, k=k)
