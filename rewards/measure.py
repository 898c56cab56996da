"""Metrics by name: "ndcg@10", "recall@100", "mrr@10", "mrr"."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ..errors import ConfigError
from .mrr import mrr
from .ndcg import Gain, ndcg
from .recall import recall

Metric = Callable[[Sequence[str], Mapping[str, int]], float]
"""(ranking of document ids, document id → grade) → [0, 1]."""

KNOWN = "ndcg@k, recall@k, mrr@k (k = 1, 2, …) and mrr"
_NAME = re.compile(r"(ndcg|recall|mrr)@([1-9][0-9]*)|mrr")


def measure(name: str, gain: Gain = "linear") -> Metric:
    """The metric of that name; `gain` is used by nDCG alone. Raises ConfigError for a name that is not known."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(f"metric {name!r} is not known; known are {KNOWN}. Write for instance 'ndcg@10'.")
    k = int(match[2]) if match[2] else None
    if match[1] == "ndcg":
        return partial(ndcg, k=k, gain=gain)
    return partial(recall if match[1] == "recall" else mrr, k=k)
