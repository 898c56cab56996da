"""What the adapters to other libraries share: from a result to texts, and from several rankings to one."""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, TypeVar

from ..envs.fusion import RRF_CONSTANT
from ..errors import QuerylectError
from .results import RewriteResult, plain_queries

log = logging.getLogger(__name__)

OnFailure = Literal["question", "raise"]
"""What is searched where an answer fails its form: the question as it stands, told in the log; or nothing."""
Item = TypeVar("Item")


class RewriteFailedError(QuerylectError):
    """An answer failed its form, and the adapter was told to raise."""


def queries_of(result: RewriteResult, on_failure: OnFailure) -> list[str]:
    """The texts to search with. Raises RewriteFailedError, and ConfigError for a plan that no text can say."""
    if not result.fallback:
        return plain_queries(result.plan)
    if on_failure == "raise":
        raise RewriteFailedError(f"the rewrite of {result.question.text!r} failed: {result.failure}")
    log.warning("the rewrite failed (%s): the question is searched as it stands", result.failure)
    return [result.question.text]


def merged(rankings: Sequence[Sequence[Item]], key: Callable[[Item], Hashable]) -> list[Item]:
    """One ranking by reciprocal rank fusion: places count, since scores of other retrievers need not be comparable.

    A single ranking stays as it is.
    """
    if len(rankings) == 1:
        return list(rankings[0])
    scores: dict[Hashable, float] = {}
    items: dict[Hashable, Item] = {}
    for ranking in rankings:
        for place, item in enumerate(ranking, start=1):
            name = key(item)
            items.setdefault(name, item)
            scores[name] = scores.get(name, 0.0) + 1 / (RRF_CONSTANT + place)
    return [items[name] for name in sorted(scores, key=lambda name: -scores[name])]
