"""The environment as an HTTP service: questions, rankings and rewards over FastAPI, and never a qrel.

Plans of concurrent requests are searched together (see batching); scores and texts are read in threads, so that the
event loop stays free. `serve` listens only when the index is open and has answered a first search.
"""

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Annotated

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Response

from .. import __version__
from ..configs.schema import EnvironmentConfig
from ..errors import RequestError, UserError
from .batching import Batcher, Hits, OverloadedError
from .environment import Environment
from .page.router import Writer, page_router
from .plan import SearchPlan, is_unicode
from .problems import MAX_BODY_BYTES, Gate, add_problem_handlers
from .wire import (
    MAX_K,
    MAX_PAGE,
    PRIMARY_METRIC,
    EnvironmentInfo,
    Health,
    HitBody,
    Limits,
    QuestionBody,
    QuestionPage,
    SearchRequest,
    SearchResponse,
    StepRequest,
    StepResponse,
    StepResult,
)

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5
"""How long requests under way may take to finish after SIGTERM or SIGINT."""
_BIND_REMEDIES = {
    errno.EADDRINUSE: "Stop the program that has the port, or set env.port to another one (0 takes a free one).",
    errno.EADDRNOTAVAIL: "Set env.host to a name or address of this machine.",
    errno.EACCES: "Set env.port to a port that this user may take, 1024 or above (0 takes a free one).",
}


class _Room:
    """What the routes share: the environment, its batcher and the set of its question ids."""

    def __init__(self, environment: Environment, config: EnvironmentConfig) -> None:
        self.environment = environment
        self.batcher = Batcher(
            environment.search,
            environment.index_hash,
            max_pending=config.max_pending,
            cache_entries=config.cache_entries,
        )
        self.limits = Limits(
            max_plans=min(config.max_plans, config.max_pending), max_k=MAX_K, max_body_bytes=MAX_BODY_BYTES
        )
        self.question_ids = {q.id for split in environment.splits for q in environment.questions(split)}

    async def rank(self, plans: Sequence[SearchPlan]) -> list[Hits]:
        """Rank plans that keep to the limits. HTTPException 413 or 422 for those that do not."""
        if len(plans) > self.limits.max_plans:
            raise HTTPException(
                413,
                f"{len(plans)} plans in one request; at most {self.limits.max_plans} are taken. Send them in parts.",
            )
        if not all(is_unicode(term.text) for plan in plans for probe in plan.probes for term in probe.terms):
            raise HTTPException(422, "a plan holds half of a surrogate pair, which is no text; send valid Unicode.")
        longest = max(max([plan.k, *(probe.k or 1 for probe in plan.probes)]) for plan in plans)
        if longest > MAX_K:
            raise HTTPException(422, f"a plan asks for k={longest} documents; at most {MAX_K} are given. Lower k.")
        return await self.batcher.search(plans)

    def bodies(self, hits: Hits, with_text: bool) -> list[HitBody]:
        """The wire form of a ranking."""
        if not with_text:
            return [HitBody(id=hit.id, score=hit.score) for hit in hits]
        documents = [self.environment.document(hit.id) for hit in hits]
        return [
            HitBody(id=hit.id, score=hit.score, title=document.title, text=document.text)
            for hit, document in zip(hits, documents, strict=True)
        ]

    def check_metrics(self, metrics: Sequence[str]) -> None:
        """RequestError for an unknown metric."""
        try:
            self.environment.score(next(iter(self.question_ids)), [], metrics)
        except UserError as error:
            raise RequestError(str(error)) from error

    def result(self, question_id: str, hits: Hits, with_text: bool, metrics: Sequence[str]) -> StepResult:
        """Score one ranking and give it its wire form."""
        values = self.environment.score(question_id, list(hits), metrics)
        ranking = self.bodies(hits, with_text)
        return StepResult(question_id=question_id, ranking=ranking, reward=values[PRIMARY_METRIC], metrics=values)


def create_app(
    environment: Environment, config: EnvironmentConfig, token: str | None = None, writer: Writer | None = None
) -> FastAPI:
    """The service of an opened environment; with a token, every call but the health checks and the page asks for it.

    `writer` generates rewrites for the page.
    """
    room = _Room(environment, config)
    batcher = room.batcher

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await batcher.start()
        try:
            yield
        finally:
            await batcher.stop()

    app = FastAPI(
        title="querylect environment",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    app.add_middleware(Gate, token=token or None)
    add_problem_handlers(app)
    app.include_router(page_router(environment, config, writer))

    @app.get("/healthz")
    async def healthz() -> Health:
        """The process answers."""
        return Health(status="ok")

    @app.get("/readyz")
    async def readyz() -> Health:
        """Plans are taken."""
        if not batcher.running:
            raise OverloadedError("the service starts up or goes down; ask again later or ask another replica")
        return Health(status="ready")

    @app.get("/v1/environment")
    async def describe() -> EnvironmentInfo:
        """What is searched, by which retriever, and which questions there are."""
        return EnvironmentInfo(
            name=environment.name,
            retriever=environment.card,
            corpus_size=environment.corpus_size,
            corpus_hash=environment.corpus_hash,
            index_hash=environment.index_hash,
            gain=environment.gain,
            splits=dict(environment.splits),
            limits=room.limits,
        )

    @app.get("/v1/questions")
    async def questions(
        split: str,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> QuestionPage:
        """One page of a split's questions, in their fixed order."""
        if split not in environment.splits:
            known = ", ".join(sorted(environment.splits))
            raise HTTPException(404, f"there is no split {split!r}; this environment has: {known}.")
        page = [QuestionBody.of(question) for question in environment.questions(split, offset, limit)]
        return QuestionPage(split=split, total=environment.splits[split], offset=offset, questions=page)

    @app.post("/v1/search", response_model=SearchResponse)
    async def search(request: SearchRequest) -> Response:
        """Rank every plan."""
        rankings = await room.rank(request.plans)

        def write() -> str:
            bodies = [room.bodies(hits, request.with_text) for hits in rankings]
            answer = SearchResponse(index_hash=environment.index_hash, rankings=bodies)
            return answer.model_dump_json(exclude_none=True)

        return Response(await asyncio.to_thread(write), media_type="application/json")

    @app.post("/v1/step", response_model=StepResponse)
    async def step(request: StepRequest) -> Response:
        """Rank every step's plan and say what the ranking is worth for its question."""
        unknown = sorted({step.question_id for step in request.steps} - room.question_ids)
        if unknown:
            raise HTTPException(
                404,
                f"{len(unknown)} unknown question ids, {unknown[0]!r} among them; take ids from GET /v1/questions.",
            )
        metrics = list(dict.fromkeys([PRIMARY_METRIC, *request.metrics]))
        room.check_metrics(metrics)
        rankings = await room.rank([step.plan for step in request.steps])

        def write() -> str:
            results = [
                room.result(step.question_id, hits, request.with_text, metrics)
                for step, hits in zip(request.steps, rankings, strict=True)
            ]
            answer = StepResponse(index_hash=environment.index_hash, results=results)
            return answer.model_dump_json(exclude_none=True)

        return Response(await asyncio.to_thread(write), media_type="application/json")

    return app


def serve(
    config: EnvironmentConfig,
    token: str | None = None,
    ready: Callable[[str], None] | None = None,
    writer: Writer | None = None,
) -> None:
    """Open the environment and serve it until SIGTERM or SIGINT, then finish what is under way and return.

    `ready` gets the URL once requests are taken; `writer` is as in `create_app`. Raises UserError where the port is in
    use, the host is not one of this machine, or a host other than loopback is asked for without a token, and what
    `Environment.open` raises.
    """
    if not token and not is_loopback(config.host):
        raise UserError(
            f"host {config.host!r} is reachable from other machines and no token is set. Set the environment variable "
            "named by client.token_env (QUERYLECT_TOKEN) to a secret, or serve on 127.0.0.1."
        )
    with _bound(config.host, config.port) as listener:
        environment = Environment.open(config)
        environment.search([SearchPlan.of("warm up")])
        url = _url(config.host, listener.getsockname()[1])
        app = create_app(environment, config, token, writer)
        settings = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=SHUTDOWN_SECONDS, ws="none"
        )
        with _quiet_signals():
            _Server(settings, lambda: ready(url) if ready else None).run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn's server that says when it takes requests."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call back."""
        await super().startup(sockets)
        self._on_started()


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to the address. It does not listen yet: until it does, connections are refused, not kept."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(
            f"cannot serve on host {host!r}: {error}. Give a host name or address of this machine."
        ) from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            remedy = _BIND_REMEDIES.get(error.errno or 0, "Choose another env.host or env.port.")
            raise UserError(f"cannot serve on {host} port {port}: {error.strerror or error}. {remedy}") from error
        yield listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than localhost counts as reachable."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _url(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """uvicorn raises SIGINT and SIGTERM again after its graceful end; here that end is the whole of their effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ignore(_signal: int, _frame: FrameType | None) -> None:
        log.info("stopped by signal %d", _signal)

    before = {number: signal.signal(number, ignore) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
