"""Ranking metrics by name, as trec_eval defines them.

nDCG, recall and reciprocal rank can be rewards, so they are computed here, which is several times faster;
the others are computed by pytrec_eval, but for judged@k, which it does not have.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from math import log2
from operator import truediv

from ..errors import ConfigError
from ..sources import optional_packages

RELEVANT = 1
"""The least grade that binary metrics count as relevant, where a dataset does not say otherwise."""


def ndcg(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = 10) -> float:
    """DCG@k / ideal DCG@k, in [0, 1], with DCG@k = Σ_{i ≤ k} grade_i / log2(i + 1) (Järvelin & Kekäläinen 2002).

    `ranking`: document ids, best first. `judged`: document id → grade; a document that is absent or has a grade of 0
    or less gains nothing. The ideal ranks *all* judged documents, found or not, as trec_eval's `ndcg_cut`.
    0 if nothing is judged relevant. k None judges the whole ranking. Raises ValueError as `top`.
    """
    gains = {document: float(grade) for document, grade in judged.items() if grade > 0}
    dcg = _dcg(map(gains.get, top(ranking, k), repeat(0.0)))
    return dcg / _dcg(sorted(gains.values(), reverse=True)[:k]) if gains else 0.0


def _dcg(gains: Iterable[float]) -> float:
    total: float = sum(map(truediv, gains, map(log2, count(2))))
    return total


def mrr(
    ranking: Sequence[str], judged: Mapping[str, int], k: int | None = None, relevance_level: int = RELEVANT
) -> float:
    """1 / rank of the first relevant document (grade >= `relevance_level`) among the first k, else 0.

    trec_eval's `recip_rank`. k None searches the whole ranking (Voorhees 1999). Raises ValueError as `top`.
    """
    ranks = (
        rank for rank, document in enumerate(top(ranking, k), start=1) if judged.get(document, 0) >= relevance_level
    )
    first = next(ranks, None)
    return 1 / first if first is not None else 0.0


def recall(
    ranking: Sequence[str], judged: Mapping[str, int], k: int | None = 10, relevance_level: int = RELEVANT
) -> float:
    """Share of the relevant documents (grade >= `relevance_level`) among the first k, in [0, 1].

    trec_eval's `recall_k`. 0 if nothing is judged relevant. k None judges the whole ranking. Raises ValueError as
    `top`.
    """
    relevant = {document for document, grade in judged.items() if grade >= relevance_level}
    return len(relevant.intersection(top(ranking, k))) / len(relevant) if relevant else 0.0


def set_precision(
    ranking: Sequence[str], judged: Mapping[str, int], k: int | None = 1000, relevance_level: int = RELEVANT
) -> float:
    """Share of the documents of the ranking up to the k-th that are relevant (grade >= `relevance_level`), in [0, 1];
    0 for an empty one. Unlike P@k, it does not count missing documents. Raises ValueError as `top`."""
    retrieved = top(ranking, k)
    return sum(judged.get(document, 0) >= relevance_level for document in retrieved) / max(1, len(retrieved))


def f_measure(
    ranking: Sequence[str],
    judged: Mapping[str, int],
    k: int | None = 1000,
    relevance_level: int = RELEVANT,
    *,
    beta: float,
) -> float:
    """F_β of the set of the first k documents: (1 + β²) · P · R / (β² · P + R), in [0, 1], with `set_precision` and
    `recall`; β = 3 is that of technology-assisted review. Raises ValueError as `top`."""
    precision = set_precision(ranking, judged, k, relevance_level)
    if not precision:
        return 0.0
    share = recall(ranking, judged, k, relevance_level)
    return (1 + beta**2) * precision * share / (beta**2 * precision + share)


def judged_share(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = 10) -> float:
    """Share of the first k documents that have a judgement of any grade; 0 for an empty ranking.

    Of a ranking shorter than k, the share of its documents (ir_measures' `Judged@k`). Raises ValueError as `top`.
    """
    retrieved = top(ranking, k)
    return sum(document in judged for document in retrieved) / len(retrieved) if retrieved else 0.0


def by_trec_eval(
    ranking: Sequence[str], judged: Mapping[str, int], measure: str, relevance_level: int = RELEVANT
) -> float:
    """A measure of pytrec_eval, such as `map_cut.10`. Raises ValueError as `top`, MissingPackageError without it."""
    with optional_packages():
        import pytrec_eval

    descending = {document: float(-rank) for rank, document in enumerate(top(ranking, None))}
    if not descending or not judged:
        return 0.0
    # Where all grades are negative, trec_eval reads memory that it has not set, and may never return.
    grades = {document: max(0, grade) for document, grade in judged.items()}
    evaluator = pytrec_eval.RelevanceEvaluator({"q": grades}, {measure}, relevance_level=relevance_level)
    (values,) = evaluator.evaluate({"q": descending}).values()
    return float(values[measure.replace(".", "_")])


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

KNOWN = (
    "ndcg@k, recall@k, mrr@k, map@k, p@k, setp@k, f1@k to f9@k, success@k, judged@k (k = 1, 2, …), mrr, map and "
    "r-precision"
)
_NAME = re.compile(r"(ndcg|recall|mrr|map|p|setp|f[1-9]|success|judged)@([1-9][0-9]*)|(mrr|map|r-precision)")
SET_METRIC = re.compile(r"(setp|f[1-9])@[1-9][0-9]*")
"""Names of the metrics of a set: what stands behind the k-th document matters to them as much as the first."""
_BINARY = {"recall": recall, "mrr": mrr, "setp": set_precision}
_TREC_EVAL = {"map": "map_cut", "p": "P", "success": "success"}
_WHOLE_RANKING = {"map": "map", "r-precision": "Rprec"}


def parse_metric(name: str) -> tuple[str, int | None]:
    """The metric and its k; k is None for one that judges the whole ranking. ConfigError for an unknown name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(f"metric {name!r} is not known; known are {KNOWN}. Write for instance 'ndcg@10'.")
    return (match[1], int(match[2])) if match[1] else (match[3], None)


def measure(name: str, relevance_level: int = RELEVANT) -> Metric:
    """The metric of that name. Raises ConfigError for an unknown name.

    nDCG and judged@k do not use `relevance_level`, the least grade of a relevant document.
    """
    metric, k = parse_metric(name)
    if metric == "ndcg":
        return partial(ndcg, k=k)
    if metric == "judged":
        return partial(judged_share, k=k)
    if metric in _BINARY:
        return partial(_BINARY[metric], k=k, relevance_level=relevance_level)
    if metric[0] == "f":
        return partial(f_measure, k=k, relevance_level=relevance_level, beta=int(metric[1:]))
    of_trec_eval = _WHOLE_RANKING[metric] if k is None else f"{_TREC_EVAL[metric]}.{k}"
    return partial(by_trec_eval, measure=of_trec_eval, relevance_level=relevance_level)
