"""What the routes of a service share: its environment, batcher and metrics, and how plans are checked and answered.

Plans of concurrent requests are searched together (see batching); scores and texts are read in threads, so that the
event loop stays free.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

from fastapi import HTTPException, Request, Response
from pydantic_core import to_json

from ...configs.schema import EnvironmentConfig
from ...errors import RequestError, UserError
from ..environment import Environment, PlanRanking
from ..plan import SearchPlan, is_unicode
from ..schemas import PRIMARY_METRIC, Limits
from .batching import Batcher
from .connection import while_connected
from .info import limits_of
from .metrics import Metrics
from .middleware import note


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
            environment.search,
            search_in_steps=environment.search_in_steps,
            work=environment.work,
            max_pending=config.max_pending,
            cache_bytes=config.cache_bytes,
            metrics=self.metrics,
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
        """Log plans, and check what was read against the limits. HTTPException 413 or 422."""
        note(request.scope, plans=len(plans))
        if self._log_texts:
            note(request.scope, texts=[plan.texts for plan in plans])
        check_plans(plans, self.limits)

    async def rank(
        self, request: Request, plans: Sequence[SearchPlan], digests: Sequence[str] | None = None
    ) -> list[PlanRanking]:
        """Rank admitted plans. Raises as `while_connected` and `Batcher.search`."""
        ranked = await while_connected(request, self.batcher.search(plans, digests), self.given_up)
        self.metrics.truncated.inc(sum(hits.truncated for hits in ranked))
        return ranked

    def ranking(self, hits: PlanRanking, with_text: bool) -> list[dict[str, object]]:
        """The wire form of a ranking (schemas.HitBody) as a dictionary for JSON."""
        if not all(map(math.isfinite, [score for _, score in hits])):
            raise ValueError("a ranking holds a score that is no finite number")
        if not with_text:
            return [{"id": name, "score": score} for name, score in hits]
        documents = [self.environment.document(hit.id) for hit in hits]
        return [
            {"id": hit.id, "score": hit.score, "title": document.title, "text": document.text}
            for hit, document in zip(hits, documents, strict=True)
        ]

    def check_metrics(self, metrics: Sequence[str]) -> None:
        """RequestError for an unknown metric."""
        try:
            self.environment.score(next(iter(self.environment.question_ids)), [], metrics)
        except UserError as error:
            raise RequestError(str(error)) from error

    def result(self, question_id: str, hits: PlanRanking, with_text: bool, metrics: Sequence[str]) -> dict[str, object]:
        """Score one ranking and give it its wire form (schemas.StepResult) without the plan's digest."""
        values = self.environment.score(question_id, hits, metrics)
        reward = values[PRIMARY_METRIC]
        if not 0.0 <= reward <= 1.0 + 1e-9 or not all(math.isfinite(value) for value in values.values()):
            raise ValueError(f"question {question_id!r} was scored {values}, which is no reward")
        ranking = self.ranking(hits, with_text)
        scored = {"ranking": ranking, "reward": reward, "metrics": values, "truncated": hits.truncated}
        return {"question_id": question_id, **scored}

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


def check_plans(plans: Sequence[SearchPlan], limits: Limits) -> None:
    """HTTPException 413 for plans that are too many or too large, 422 for one that cannot be searched."""
    _check_limit("{} plans in one request", len(plans), limits.max_plans, "Send them in parts.")
    texts = sum(len(plan.texts) for plan in plans)
    asked = "the plans of one request hold {} texts together"
    _check_limit(asked, texts, limits.max_request_terms, "Send them in parts.")
    hits = sum(plan.k for plan in plans)
    template = "the plans of one request ask for {} documents together"
    _check_limit(template, hits, limits.max_hits, "Send them in parts, or lower k.")
    characters = sum(plan.characters for plan in plans)
    template = "the texts of one request have {} characters together"
    _check_limit(template, characters, limits.max_request_characters, "Send them in parts.")
    for plan in plans:
        _check_limit("a plan holds {} texts", len(plan.texts), limits.max_terms, "Ask for less in one plan.")
        _check_limit("the texts of a plan have {} characters", plan.characters, limits.max_characters, "Shorten them.")
        if not all(map(is_unicode, [*plan.texts, *(probe.source or "" for probe in plan.probes)])):
            raise HTTPException(422, "a plan holds half of a surrogate pair, which is no text; send valid Unicode.")
        longest = max(plan.k, *(probe.k or 1 for probe in plan.probes))
        _check_limit("a plan asks for k={} documents", longest, limits.max_k, "Lower k.", status=422)


def _check_limit(template: str, actual: int, limit: int, remedy: str, status: int = 413) -> None:
    if actual > limit:
        raise HTTPException(status, f"{template.format(actual)}; at most {limit} are taken. {remedy}")
