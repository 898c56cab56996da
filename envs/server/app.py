"""The environment as an HTTP service: questions, rankings and rewards over FastAPI, and never a qrel.

`serve` listens only when the index is open and has answered a first search.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from ...configs.schema import EnvironmentConfig
from ...version import __version__
from ..environment import Environment
from ..page.router import Writer, page_router
from ..schemas import (
    MAX_PAGE,
    PRIMARY_METRIC,
    EnvironmentInfo,
    Health,
    QuestionBody,
    QuestionPage,
    SearchRequest,
    SearchResponse,
    StepRequest,
    StepResponse,
)
from ..wire import hit_fields, info_of, result_fields
from .batching import OverloadedError
from .bodies import BodyLimits
from .middleware import RequestMiddleware
from .openapi import declare_errors
from .problems import add_problem_handlers
from .service import ServiceState


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

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.batcher.start()
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
    app.include_router(page_router(environment, config, service.batcher.search, writer))
    for routes in (_status_routes, _question_routes, _search_routes):
        app.include_router(routes(service))
    if extend is not None:
        extend(app)
    return app


def _status_routes(service: ServiceState) -> APIRouter:
    """Routes for operators and load balancers."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> Health:
        """The process answers."""
        return Health(status="ok")

    @router.get("/readyz")
    async def readyz() -> Health:
        """Plans are taken, and searched soon."""
        if not service.ready:
            raise OverloadedError(
                "the service starts up or goes down, too much work waits, or its index was damaged; ask again later or "
                "ask another replica"
            )
        return Health(status="ready")

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        caches = {"rankings": service.batcher.cache, **service.environment.caches}
        return Response(service.metrics.text(service.ready, caches), media_type=CONTENT_TYPE_LATEST)

    return router


def _question_routes(service: ServiceState) -> APIRouter:
    """What the environment is, and its questions."""
    router, environment = APIRouter(), service.environment

    @router.get("/v1/environment")
    async def describe() -> EnvironmentInfo:
        """What is searched, by which retriever, and which questions there are."""
        return info_of(environment, service.limits)

    @router.get("/v1/questions")
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

    return router


def _search_routes(service: ServiceState) -> APIRouter:
    """Rankings and their rewards."""
    router, environment = APIRouter(), service.environment

    @router.post("/v1/search", response_model=SearchResponse)
    async def search(body: SearchRequest, request: Request) -> Response:
        """Rank every plan, without the documents of `without`."""
        service.admit(request, body.plans)
        searched = None
        if body.without:
            searched = await asyncio.to_thread(environment.plans_without, body.plans, body.without)
        digests, ranked = await service.rank(request, body.plans, searched)
        return await service.answer(
            lambda: {
                "plan_digests": digests,
                "rankings": [hit_fields(environment, hits, body.with_text) for hits in ranked],
                "truncated": [hits.truncated for hits in ranked],
            }
        )

    @router.post("/v1/step", response_model=StepResponse)
    async def step(body: StepRequest, request: Request) -> Response:
        """Rank every step's plan and score the ranking for its question."""
        unknown = sorted({step.question_id for step in body.steps} - environment.question_ids)
        if unknown:
            raise HTTPException(
                404,
                f"{len(unknown)} unknown question ids, {unknown[0]!r} among them; take ids from GET /v1/questions.",
            )
        metric_names = list(dict.fromkeys([PRIMARY_METRIC, *body.metrics]))
        service.check_metrics(metric_names)
        plans = [step.plan for step in body.steps]
        service.admit(request, plans)
        searched = [environment.plan_for(step.question_id, step.plan) for step in body.steps]
        digests, ranked = await service.rank(request, plans, searched)
        return await service.answer(
            lambda: {
                "results": [
                    result_fields(environment, step.question_id, digest, hits, body.with_text, metric_names)
                    for step, digest, hits in zip(body.steps, digests, ranked, strict=True)
                ]
            }
        )

    return router
