"""Names of metrics that can be rewards: each scores the first k documents of a search, which returns at least k."""

import re
from typing import Annotated

from pydantic import AfterValidator


def _check(metric: str) -> str:
    match = re.fullmatch(r"(?:ndcg|recall|mrr)@([1-9][0-9]{0,3})", metric)
    if match is None or int(match[1]) > 1000:
        raise ValueError(
            f"the metric is {metric!r}; expected ndcg@k, recall@k or mrr@k with a k from 1 to 1000, such as ndcg@10"
        )
    return metric


RewardMetric = Annotated[str, AfterValidator(_check)]


def cutoff(metric: RewardMetric) -> int:
    """How many documents the metric scores."""
    return int(metric.partition("@")[2])
