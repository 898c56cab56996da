"""The state that a service's routes share (environment, batcher, metrics), and how plans are checked and answered.

Plans of concurrent requests are searched together (see batching); scores and texts are read in threads, so that the
event loop stays free.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from fastapi import HTTPException, Request, Response
from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from ...configs.schema import EnvironmentConfig
from ...errors import RequestError, UserError
from ..environment import Environment, PlanRanking
from ..plan import SearchPlan, is_unicode, plan_digest
from ..schemas import Limits
from ..wire import limits_of
from .batching import GOING_DOWN, Batcher, OverloadedError
from .metrics import Metrics
from .middleware import note

Value = TypeVar("Value")


class ServiceState:
    """State that the routes share: the environment, its batcher, its limits and its metrics."""

    def __init__(self, environment: Environment, config: EnvironmentConfig) -> None:
        self.environment = environment
        self.metrics = Metrics()
        self.draining = asyncio.Event()
        """Set once a signal has asked the process to end: from then on, new work is refused."""
        self.given_up = asyncio.Event()
        """Set once the remaining work is failed."""
        self.batcher = Batcher(
            environment, max_pending=config.max_pending, cache_bytes=config.cache_bytes, metrics=self.metrics
        )
        self.limits = limits_of(config)
        self._log_texts = config.log == "texts"
        self._closers: list[Callable[[], object]] = []

    def when_given_up(self, call: Callable[[], object]) -> None:
        """Register a callback for `give_up`; it may be called more than once."""
        self._closers.append(call)

    async def give_up(self) -> None:
        """Fail everything that still waits, for a search or for a registered extension."""
        self.given_up.set()
        for call in self._closers:
            call()
        await self.batcher.stop()

    def admit(self, request: Request, plans: Sequence[SearchPlan]) -> None:
        """Log plans, and check them against the limits. HTTPException 413 or 422."""
        note(request.scope, plans=len(plans))
        if self._log_texts:
            note(request.scope, texts=[plan.texts for plan in plans])
        check_plans(plans, self.limits)

    async def rank(
        self, request: Request, plans: Sequence[SearchPlan], searched: Sequence[SearchPlan] | None = None
    ) -> tuple[list[str], list[PlanRanking]]:
        """The digests of admitted plans, and their rankings. Raises as `while_connected` and `Batcher.search`.

        `searched` are the plans to search instead, each of them the plan itself or the plan without some documents.
        """
        digests = list(map(plan_digest, plans))
        keys = [
            digest if other is plan else plan_digest(other)
            for plan, other, digest in zip(plans, searched or plans, digests, strict=True)
        ]
        ranked = await while_connected(request, self.batcher.search(searched or plans, keys), self.given_up)
        self.metrics.truncated.inc(sum(hits.truncated for hits in ranked))
        return digests, ranked

    def check_metrics(self, metrics: Sequence[str]) -> None:
        """RequestError for an unknown metric."""
        try:
            self.environment.score(next(iter(self.environment.question_ids)), [], metrics)
        except UserError as error:
            raise RequestError(str(error)) from error

    async def answer(self, content: Callable[[], Mapping[str, object]]) -> Response:
        """The answer with the identity of what was searched and `content()`, which is called in a thread.

        Raises EnvironmentUnavailableError where a file of the index was damaged meanwhile.
        """

        def write() -> bytes:
            environment = self.environment
            with environment.intact():
                fields = content()
            identity = {"index_hash": environment.index_hash, "settings_hash": environment.settings_hash}
            return to_json({**identity, **fields})

        return Response(await asyncio.to_thread(write), media_type="application/json")

    @property
    def ready(self) -> bool:
        """Whether plans are taken, and searched soon."""
        return self.batcher.ready and not self.draining.is_set() and not self.environment.damage


async def while_connected(request: Request, work: Awaitable[Value], given_up: asyncio.Event) -> Value:
    """The result of `work`, to be awaited after the body has been read.

    It is cancelled, with a ClientDisconnect, once the client has closed the connection, and with an OverloadedError
    once `given_up` is set.
    """
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(given_up.wait())
    tasks = (working, stopping, asyncio.ensure_future(_disconnected(request)))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise OverloadedError(GOING_DOWN) if stopping.done() else ClientDisconnect
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def check_plans(plans: Sequence[SearchPlan], limits: Limits) -> None:
    """HTTPException 413 for plans that are too many or too large, 422 for one that cannot be searched."""
    _check_limit("{} plans in one request", len(plans), limits.max_plans)
    texts, characters = sum(len(plan.texts) for plan in plans), sum(plan.characters for plan in plans)
    hits = sum(plan.k for plan in plans)
    _check_limit("the plans of one request hold {} texts together", texts, limits.max_request_terms)
    _check_limit("the texts of one request have {} characters together", characters, limits.max_request_characters)
    _check_limit("the plans of one request ask for {} documents together", hits, limits.max_hits)
    for plan in plans:
        _check_limit("a plan holds {} texts", len(plan.texts), limits.max_terms, "Ask for less in one plan.")
        _check_limit("the texts of a plan have {} characters", plan.characters, limits.max_characters, "Shorten them.")
        if not all(map(is_unicode, [*plan.texts, *(probe.source or "" for probe in plan.probes)])):
            raise HTTPException(422, "a plan holds half of a surrogate pair, which is no text; send valid Unicode.")
        longest = max(plan.k, *(probe.k or 1 for probe in plan.probes))
        _check_limit("a plan asks for k={} documents", longest, limits.max_k, "Lower k.", status=422)


def _check_limit(
    template: str, actual: int, limit: int, remedy: str = "Send them in parts.", status: int = 413
) -> None:
    if actual > limit:
        raise HTTPException(status, f"{template.format(actual)}; at most {limit} are taken. {remedy}")
