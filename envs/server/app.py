"""The environment as an HTTP service: questions, rankings and rewards over FastAPI, and never a qrel.

Plans of concurrent requests are searched together (batching.py); scores and texts are read in threads, so that the
event loop stays free.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Response
from fastapi.responses import FileResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_json

from ...version import __version__
from ..environment import Environment
from ..schemas import (
    MAX_PAGE,
    EnvironmentInfo,
    QuestionPage,
    SearchRequest,
    SearchResponse,
    StepRequest,
    StepResponse,
)
from .batching import Batcher, Metrics, OverloadedError, TooLargeError
from .limits import RESPONSES, RequestMiddleware, add_problem_handlers

MAX_ANSWER_BYTES = 2**28

Extend = Callable[[FastAPI], Callable[[], object]]
"""Adds routes to a service, whose environment and batcher are in `app.state`; returns what is called at its end."""


def create_app(environment: Environment, token: str | None = None, extend: Extend | None = None) -> FastAPI:
    """The service of an opened environment; with a token, every call but the health checks and the page asks for it."""
    metrics = Metrics()
    batcher = Batcher(environment, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await batcher.start()
        try:
            yield
        finally:
            if close is not None:
                close()
            await batcher.stop()

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
    app.state.environment, app.state.batcher = environment, batcher
    app.add_middleware(RequestMiddleware, token=token or None, metrics=metrics)
    add_problem_handlers(app)
    app.include_router(_status_routes(batcher, metrics))
    app.include_router(_environment_routes(environment, batcher))
    close = extend(app) if extend is not None else None
    return app


def _status_routes(batcher: Batcher, metrics: Metrics) -> APIRouter:
    """Routes for operators and load balancers, and the page."""
    router, folder = APIRouter(), Path(__file__).parent

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz() -> dict[str, str]:
        """Plans are taken."""
        if not batcher.ready:
            raise OverloadedError("the service starts or ends, or too much work waits; ask later, or another replica")
        return {"status": "ready"}

    @router.get("/metrics", response_class=PlainTextResponse)
    async def figures() -> Response:
        """Figures for Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    # the playground: it holds no data, and asks the routes of every client with the token
    router.get("/", include_in_schema=False)(lambda: FileResponse(folder / "page.html"))
    router.get("/page.js", include_in_schema=False)(lambda: FileResponse(folder / "page.js"))
    return router


def _environment_routes(environment: Environment, batcher: Batcher) -> APIRouter:
    """The calls of `EnvironmentApi`."""
    router, info = APIRouter(), environment.info()
    head = to_json({"index_hash": info.index_hash, "settings_hash": info.settings_hash})[:-1] + b',"results":['

    async def answer(results: Iterable[dict[str, object]]) -> Response:
        return Response(await asyncio.to_thread(_written, head, results), media_type="application/json")

    @router.get("/v1/environment")
    async def describe() -> EnvironmentInfo:
        """What is searched, by which retriever, and which questions there are."""
        return info

    @router.get("/v1/questions")
    async def questions(
        split: str,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> QuestionPage:
        """One page of a split's questions, in their fixed order."""
        all_questions = environment.questions(split)
        page = all_questions[offset : offset + limit]
        return QuestionPage(split=split, total=len(all_questions), offset=offset, questions=page)

    @router.post("/v1/search", response_model=SearchResponse)
    async def search(body: SearchRequest) -> Response:
        """Rank every plan."""
        ranked = await batcher.rank(body.plans)
        return await answer(environment.result_fields(ranking, body.with_text) for ranking in ranked)

    @router.post("/v1/step", response_model=StepResponse)
    async def step(body: StepRequest) -> Response:
        """Rank every step's plan and score the ranking for its question."""
        ranked = await batcher.rank(list(map(environment.plan_of, body.steps)))
        return await answer(
            environment.step_fields(step, ranking, body.with_text, body.metrics)
            for step, ranking in zip(body.steps, ranked, strict=True)
        )

    return router


def _written(head: bytes, results: Iterable[dict[str, object]]) -> bytes:
    parts, size = [], 0
    for result in results:
        parts.append(to_json(result))
        size += len(parts[-1])
        if size > MAX_ANSWER_BYTES:
            raise TooLargeError(
                f"the answer is longer than {MAX_ANSWER_BYTES} bytes. Ask for fewer documents at once, or without "
                "their texts (with_text=false)."
            )
    return head + b",".join(parts) + b"]}"
