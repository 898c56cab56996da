"""The state that a service's routes share (environment, batcher, metrics), and how plans are checked and answered.

Plans of concurrent requests are searched together (see batching); scores and texts are read in threads, so that the
event loop stays free.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from fastapi import HTTPException, Response
from pydantic_core import to_json

from ..environment import Environment, PlanRanking
from ..plan import SearchPlan, is_unicode
from ..schemas import MAX_CHARACTERS, MAX_HITS, MAX_K, MAX_PLANS, MAX_TEXTS
from .batching import Batcher
from .metrics import Metrics


class ServiceState:
    """State that the routes share: the environment, its batcher and its metrics."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.metrics = Metrics()
        self.batcher = Batcher(environment, self.metrics)
        self.closers: list[Callable[[], object]] = []
        """Called when the service ends."""

    async def rank(self, plans: Sequence[SearchPlan]) -> list[PlanRanking]:
        """The rankings of checked plans. Raises as `Batcher.search`."""
        ranked = await self.batcher.search(plans)
        self.metrics.truncated.inc(sum(hits.truncated for hits in ranked))
        return ranked

    async def answer(self, content: Callable[[], Mapping[str, object]]) -> Response:
        """The answer with the identity of what was searched and `content()`, which is called in a thread."""

        def write() -> bytes:
            environment = self.environment
            identity = {"index_hash": environment.index_hash, "settings_hash": environment.settings_hash}
            return to_json({**identity, **content()})

        return Response(await asyncio.to_thread(write), media_type="application/json")

    @property
    def ready(self) -> bool:
        """Whether plans are taken."""
        return self.batcher.ready


def check_plans(plans: Sequence[SearchPlan]) -> None:
    """HTTPException 413 for plans that are too many or too large, 422 for one that cannot be searched."""
    texts = [text for plan in plans for text in plan.texts]
    _check_limit("{} plans in one request", len(plans), MAX_PLANS)
    _check_limit("the plans of one request hold {} texts together", len(texts), MAX_TEXTS)
    _check_limit("the texts of one request have {} characters together", sum(map(len, texts)), MAX_CHARACTERS)
    _check_limit("the plans of one request ask for {} documents together", sum(plan.k for plan in plans), MAX_HITS)
    for plan in plans:
        if not all(map(is_unicode, [*plan.texts, *(probe.source or "" for probe in plan.probes)])):
            raise HTTPException(422, "a plan holds half of a surrogate pair, which is no text; send valid Unicode.")
        longest = max(plan.k, *(probe.k or 1 for probe in plan.probes))
        _check_limit("a plan asks for k={} documents", longest, MAX_K, "Lower k.", status=422)


def _check_limit(
    template: str, actual: int, limit: int, remedy: str = "Send them in parts.", status: int = 413
) -> None:
    if actual > limit:
        raise HTTPException(status, f"{template.format(actual)}; at most {limit} are taken. {remedy}")
