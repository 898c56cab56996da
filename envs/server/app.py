"""The environment as an HTTP service: questions, rankings and rewards over FastAPI, and never a qrel.

Plans of concurrent requests are searched together (see batching); scores and texts are read in threads, so that the
event loop stays free. `serve` listens only when the index is open and has answered a first search.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_json

from ...configs.schema import EnvironmentConfig
from ...errors import RequestError, UserError
from ...version import __version__
from ..environment import Environment, PlanRanking
from ..page.router import Writer, page_router
from ..plan import SearchPlan, is_unicode, plan_digest
from ..schemas import (
    MAX_PAGE,
    PRIMARY_METRIC,
    EnvironmentInfo,
    Health,
    Limits,
    QuestionBody,
    QuestionPage,
    SearchRequest,
    SearchResponse,
    StepRequest,
    StepResponse,
)
from .batching import Batcher, Hits, OverloadedError
from .bodies import BodyLimits
from .connection import while_connected
from .info import info_of, limits_of
from .metrics import Metrics
from .middleware import RequestMiddleware, note
from .openapi import declare_errors
from .problems import add_problem_handlers


class ServiceState:
    """State that the routes share: the environment, its batcher, its metrics and its question ids."""

    def __init__(self, environment: Environment, config: EnvironmentConfig) -> None:
        self.environment = environment
        self.metrics = Metrics()
        self.draining = asyncio.Event()
        """Set once a signal has asked the process to end: from then on, new work is refused."""
        self.batcher = Batcher(
            environment.search,
            search_in_steps=environment.search_in_steps,
            work=environment.work,
            max_pending=config.max_pending,
            cache_bytes=config.cache_bytes,
            metrics=self.metrics,
        )
        self.limits = limits_of(config)
        self.question_ids = {q.id for split in environment.splits for q in environment.questions(split)}
        self._log_texts = config.log == "texts"
        self._closers: list[Callable[[], object]] = []

    def when_given_up(self, call: Callable[[], object]) -> None:
        """Register a callback for `give_up`; it may be called more than once."""
        self._closers.append(call)

    async def give_up(self) -> None:
        """Fail everything that still waits, for a search or for a registered extension."""
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
    ) -> list[Hits]:
        """Rank admitted plans. ClientGoneError once the client has closed the connection."""
        ranked = await while_connected(request, self.batcher.search(plans, digests))
        self.metrics.truncated.inc(sum(map(truncated, ranked)))
        return ranked

    def ranking(self, hits: Hits, with_text: bool) -> list[dict[str, object]]:
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
            self.environment.score(next(iter(self.question_ids)), [], metrics)
        except UserError as error:
            raise RequestError(str(error)) from error

    def result(self, question_id: str, hits: Hits, with_text: bool, metrics: Sequence[str]) -> dict[str, object]:
        """Score one ranking and give it its wire form (schemas.StepResult) without the plan's digest."""
        values = self.environment.score(question_id, list(hits), metrics)
        reward = values[PRIMARY_METRIC]
        if not 0.0 <= reward <= 1.0 + 1e-9 or not all(math.isfinite(value) for value in values.values()):
            raise ValueError(f"question {question_id!r} was scored {values}, which is no reward")
        ranking = self.ranking(hits, with_text)
        scored = {"ranking": ranking, "reward": reward, "metrics": values, "truncated": truncated(hits)}
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


def truncated(hits: Hits) -> int:
    """Texts of a ranking's plan that were read only in part."""
    return hits.truncated if isinstance(hits, PlanRanking) else 0


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


def create_app(
    environment: Environment,
    config: EnvironmentConfig,
    token: str | None = None,
    writer: Writer | None = None,
    extend: Callable[[FastAPI], object] | None = None,
) -> FastAPI:
    """The service of an opened environment; with a token, every call but the health checks and the page asks for it.

    `writer` generates rewrites for the page; `extend` adds routes, which find the service in `app.state.service`.
    """
    service = ServiceState(environment, config)
    batcher = service.batcher

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await batcher.start()
        try:
            yield
        finally:
            await service.give_up()

    app = FastAPI(
        title="querylect environment",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    app.state.service = service
    app.add_middleware(
        RequestMiddleware,
        token=token or None,
        bodies=BodyLimits(
            max_bytes=config.max_body_bytes,
            max_entries=service.limits.max_entries,
            read_seconds=config.read_seconds,
        ),
        draining=service.draining,
        metrics=service.metrics,
        log_requests=config.log != "none",
    )
    add_problem_handlers(app)
    declare_errors(app, token=bool(token), limits=service.limits)
    app.include_router(page_router(environment, config, batcher.search, writer))

    @app.get("/healthz")
    async def healthz() -> Health:
        """The process answers."""
        return Health(status="ok")

    @app.get("/readyz")
    async def readyz() -> Health:
        """Plans are taken, and searched soon."""
        if not service.ready:
            raise OverloadedError(
                "the service starts up or goes down, too much work waits, or its index was damaged; ask again later or "
                "ask another replica"
            )
        return Health(status="ready")

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        caches = {"rankings": batcher.cache, **environment.caches}
        return Response(service.metrics.text(service.ready, caches), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/environment")
    async def describe() -> EnvironmentInfo:
        """What is searched, by which retriever, and which questions there are."""
        return info_of(environment, service.limits)

    @app.get("/v1/questions")
    async def questions(
        split: str,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> QuestionPage:
        """One page of a split's questions, in their fixed order."""
        if split not in environment.splits:
            available = ", ".join(sorted(environment.splits))
            raise HTTPException(404, f"there is no split {split!r}; this environment has: {available}.")
        page = [QuestionBody.of(question) for question in environment.questions(split, offset, limit)]
        return QuestionPage(split=split, total=environment.splits[split], offset=offset, questions=page)

    @app.post("/v1/search", response_model=SearchResponse)
    async def search(body: SearchRequest, request: Request) -> Response:
        """Rank every plan."""
        service.admit(request, body.plans)
        digests = list(map(plan_digest, body.plans))
        ranked = await service.rank(request, body.plans, digests)

        def rankings() -> dict[str, object]:
            return {
                "plan_digests": digests,
                "rankings": [service.ranking(hits, body.with_text) for hits in ranked],
                "truncated": [truncated(hits) for hits in ranked],
            }

        return await service.answer(rankings)

    @app.post("/v1/step", response_model=StepResponse)
    async def step(body: StepRequest, request: Request) -> Response:
        """Rank every step's plan and say what the ranking is worth for its question."""
        unknown = sorted({step.question_id for step in body.steps} - service.question_ids)
        if unknown:
            raise HTTPException(
                404,
                f"{len(unknown)} unknown question ids, {unknown[0]!r} among them; take ids from GET /v1/questions.",
            )
        metric_names = list(dict.fromkeys([PRIMARY_METRIC, *body.metrics]))
        service.check_metrics(metric_names)
        service.admit(request, [step.plan for step in body.steps])
        digests = [plan_digest(step.plan) for step in body.steps]
        searched = [environment.plan_for(step.question_id, step.plan) for step in body.steps]
        keys = [
            digest if plan is step.plan else plan_digest(plan)
            for step, plan, digest in zip(body.steps, searched, digests, strict=True)
        ]
        ranked = await service.rank(request, searched, keys)

        def results() -> dict[str, object]:
            scored = [
                service.result(step.question_id, hits, body.with_text, metric_names) | {"plan_digest": digest}
                for step, hits, digest in zip(body.steps, ranked, digests, strict=True)
            ]
            return {"results": scored}

        return await service.answer(results)

    if extend is not None:
        extend(app)
    return app
