"""The environment as an HTTP service: questions, rankings and rewards over FastAPI, and never a qrel.

`serve` listens only when the index is open and has answered a first search.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Response
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST

from ...version import __version__
from ..environment import Environment
from ..page.router import page_router
from ..plan import SearchPlan
from ..schemas import (
    MAX_PAGE,
    PRIMARY_METRIC,
    EnvironmentInfo,
    Health,
    QuestionPage,
    SearchRequest,
    SearchResponse,
    StepRequest,
    StepResponse,
)
from ..wire import hit_fields, info_of, result_fields
from .batching import OverloadedError
from .middleware import RequestMiddleware
from .problems import RESPONSES, add_problem_handlers
from .service import ServiceState, check_plans


def create_app(
    environment: Environment,
    token: str | None = None,
    extend: Callable[[FastAPI], object] | None = None,
) -> FastAPI:
    """The service of an opened environment; with a token, every call but the health checks and the page asks for it.

    `extend` adds routes, which find the service in `app.state.service`.
    """
    service = ServiceState(environment)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.batcher.start()
        try:
            yield
        finally:
            for close in service.closers:
                close()
            await service.batcher.stop()

    app = FastAPI(
        title="querylect environment",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        responses=RESPONSES,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if token else [],  # declares the token that is checked
    )
    app.state.service = service
    app.add_middleware(RequestMiddleware, token=token or None, metrics=service.metrics)
    add_problem_handlers(app)
    app.include_router(page_router())
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
        """Plans are taken."""
        if not service.ready:
            raise OverloadedError(
                "the service starts up or goes down, too much work waits, or its index was damaged; ask again later or "
                "ask another replica"
            )
        return Health(status="ready")

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router


def _question_routes(service: ServiceState) -> APIRouter:
    """What the environment is, and its questions."""
    router, environment = APIRouter(), service.environment

    @router.get("/v1/environment")
    async def describe() -> EnvironmentInfo:
        """What is searched, by which retriever, and which questions there are."""
        return info_of(environment)

    @router.get("/v1/questions")
    async def questions(
        split: str,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> QuestionPage:
        """One page of a split's questions, in their fixed order."""
        page = environment.questions(split, offset, limit)
        return QuestionPage(split=split, total=environment.splits[split], offset=offset, questions=page)

    return router


def _search_routes(service: ServiceState) -> APIRouter:
    """Rankings and their rewards."""
    router, environment = APIRouter(), service.environment

    @router.post("/v1/search", response_model=SearchResponse)
    async def search(body: SearchRequest) -> Response:
        """Rank every plan, without the documents of `without`."""
        check_plans(body.plans)
        plans: Sequence[SearchPlan] = body.plans
        if body.without:
            plans = await asyncio.to_thread(environment.plans_without, plans, body.without)
        ranked = await service.rank(plans)
        return await service.answer(
            lambda: {
                "rankings": [hit_fields(environment, hits, body.with_text) for hits in ranked],
                "truncated": [hits.truncated for hits in ranked],
            }
        )

    @router.post("/v1/step", response_model=StepResponse)
    async def step(body: StepRequest) -> Response:
        """Rank every step's plan and score the ranking for its question."""
        unknown = sorted({step.question_id for step in body.steps} - environment.question_ids)
        if unknown:
            raise HTTPException(
                404,
                f"{len(unknown)} unknown question ids, {unknown[0]!r} among them; take ids from GET /v1/questions.",
            )
        metric_names = list(dict.fromkeys([PRIMARY_METRIC, *body.metrics]))
        check_plans([step.plan for step in body.steps])
        ranked = await service.rank([environment.plan_for(step.question_id, step.plan) for step in body.steps])
        return await service.answer(
            lambda: {
                "results": [
                    result_fields(environment, step.question_id, hits, body.with_text, metric_names)
                    for step, hits in zip(body.steps, ranked, strict=True)
                ]
            }
        )

    return router
