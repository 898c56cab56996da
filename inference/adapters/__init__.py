"""How do other frameworks call a trained rewriter? Shared here: a result as query texts, and the fusion of rankings."""

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Literal, TypeVar

from ...data.types import Utterance
from ...envs.plan import RRF_CONSTANT
from ..turns import RewriteResult, plain_queries

log = logging.getLogger(__name__)

Item = TypeVar("Item")

_ROLES: dict[str, Literal["user", "assistant"]] = {
    "user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"
}  # fmt: skip


def queries_of(result: RewriteResult) -> list[str]:
    """The query texts of a result; the question if it failed or is `unsearched`, because something must be searched.
    Raises ConfigError for a plan with negative weights."""
    if result.failure is None:
        return plain_queries(result.plan)
    log.warning("the rewrite failed (%s): the question is searched as it stands", result.failure)
    return [result.question.text]


def utterances(messages: Iterable[tuple[str, str | None]]) -> list[Utterance]:
    """The history that chat messages (role, text) make. Messages of others than user and assistant, such as those of
    tools, and messages without text are left out."""
    return [Utterance(_ROLES[role], text) for role, text in messages if role in _ROLES and text and text.strip()]


def merged(rankings: Sequence[Sequence[Item]], key: Callable[[Item], Hashable]) -> list[Item]:
    """Merge rankings by reciprocal rank fusion, which needs no comparable scores. A single one stays unchanged."""
    if len(rankings) == 1:
        return list(rankings[0])
    scores: dict[Hashable, float] = {}
    items: dict[Hashable, Item] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            items.setdefault(key(item), item)
            scores[key(item)] = scores.get(key(item), 0.0) + 1 / (RRF_CONSTANT + rank)
    return [items[name] for name in sorted(scores, key=lambda name: -scores[name])]
