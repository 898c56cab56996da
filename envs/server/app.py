"""The environment as an HTTP service: questions, rankings and rewards over FastAPI, and never a qrel.

Plans of concurrent requests are searched together (batching.py); scores and texts are read in threads, so that the
event loop stays free.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Response
from fastapi.responses import FileResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from ...version import __version__
from ..environment import Environment, Ranking
from ..schemas import (
    MAX_PAGE,
    EnvironmentInfo,
    QuestionPage,
    SearchRequest,
    SearchResponse,
    StepRequest,
    StepResponse,
)
from .batching import Batcher, OverloadedError, TooLargeError
from .limits import RESPONSES, RequestMiddleware, add_problem_handlers
from .metrics import Metrics

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 2**28
MAX_UNREAD_BYTES = 2 * MAX_ANSWER_BYTES
"""Most bytes of all answers that clients have not read yet; one of at most SMALL_BYTES is sent beyond it."""
SMALL_BYTES = 2**18
MANY_TEXTS = 4096
READ_SECONDS = 60.0
"""How long a client may take to read SMALL_BYTES of an answer."""

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
    answers = _UnreadAnswers()

    async def answer(results: Iterator[dict[str, object]], ranked: list[Ranking], with_text: bool) -> Response:
        return await answers.of(head, results, sum(map(len, ranked)) if with_text else 0)

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
        results = (environment.result_fields(ranking, body.with_text) for ranking in ranked)
        return await answer(results, ranked, body.with_text)

    @router.post("/v1/step", response_model=StepResponse)
    async def step(body: StepRequest) -> Response:
        """Rank every step's plan and score the ranking for its question."""
        ranked = await batcher.rank(list(map(environment.plan_of, body.steps)))
        results = (
            environment.step_fields(step, ranking, body.with_text, body.metrics)
            for step, ranking in zip(body.steps, ranked, strict=True)
        )
        return await answer(results, ranked, body.with_text)

    return router


class _UnreadAnswers:
    """Writes answers and counts what is not read yet: clients that ask for much and read nothing must not fill the
    memory."""

    def __init__(self) -> None:
        self.unread = 0
        self._many_texts = asyncio.Lock()

    async def of(self, head: bytes, results: Iterator[dict[str, object]], texts: int) -> Response:
        """The answer that begins with `head` and lists the results, which are computed in a thread; those with many
        texts one after the other.

        Raises TooLargeError, OverloadedError where too much is unread, and what `results` raises.
        """
        async with self._many_texts if texts > MANY_TEXTS else nullcontext():
            content = await asyncio.to_thread(_written, head, results)
            if len(content) > SMALL_BYTES and self.unread + len(content) > MAX_UNREAD_BYTES:
                raise OverloadedError("other clients have not read their answers yet; ask later, or for less")
            self.unread += len(content)
        return _PiecewiseResponse(content, self)


def _written(head: bytes, results: Iterator[dict[str, object]]) -> bytes:
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


class _PiecewiseResponse(Response):
    """Is sent in pieces: the server waits for a slow reader only between two of them."""

    def __init__(self, content: bytes, answers: _UnreadAnswers) -> None:
        super().__init__(content, media_type="application/json")
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for start in range(0, len(self.body), SMALL_BYTES):
                piece, more = self.body[start : start + SMALL_BYTES], start + SMALL_BYTES < len(self.body)
                async with asyncio.timeout(READ_SECONDS):
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
        except TimeoutError:
            log.warning("a client did not read its answer; the connection is closed")
        finally:
            self._answers.unread -= len(self.body)
