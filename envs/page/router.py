"""The playground at `/` and the routes that only it uses; the trainer's API has none of them.

The file contains its style and script and loads nothing else; a content security policy with their hashes enforces
that. Rankings and nDCG@10 come from the routes of every client. The owner switches on what else the page may show:
judgements by `env.playground`, generated rewrites by `querylect serve --rewriter`.
"""

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal, Protocol

from fastapi import APIRouter, HTTPException, Response
from pydantic import Field

from ...configs.schema import EnvironmentConfig
from ...data.types import Question, Utterance, relevant
from ...errors import EnvironmentUnavailableError, QuerylectError, RequestError
from ..environment import Environment, RankedHit
from ..plan import SearchPlan, is_unicode
from ..schemas import HitBody, RequestBody, Wire
from ..wire import read_hits

log = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page.html"
MAX_QUESTION = 4000
"""Most characters of a question, and of each of its options, that a rewrite is generated for."""
MAX_OPTIONS = 26
"""Most options of a question that a rewrite is generated for."""
MAX_HISTORY = 64
"""Most utterances before a question that a rewrite is generated for."""
MAX_UTTERANCE = 16_000
"""Most characters of each of them."""


@dataclass(frozen=True, slots=True)
class PageRewrite:
    """What a rewriter wrote for one question; the answer of `POST /page/rewrite`.

    `plan` is None exactly when the answer did not keep the format.
    """

    text: str
    """The answer as it was generated."""
    plan: SearchPlan | None
    think: str = ""
    failure: str = ""
    """Why there is no plan, in one or two words."""
    unsearched: bool = False
    """Whether the rewriter would search nothing; `plan` is then the question as it stands."""


Rank = Callable[[Sequence[SearchPlan]], Awaitable[Sequence[Sequence[RankedHit]]]]
"""The service's search: one ranking for each plan."""
Search = Callable[[Sequence[SearchPlan]], Sequence[Sequence[HitBody]]]
"""One ranking with texts for each plan, of the served index; called from a thread."""


class Writer(Protocol):
    """Writes a rewrite of a question. Called from a thread, one call at a time; raises QuerylectError."""

    name: str
    """Shown on the page."""

    def __call__(self, question: Question, card: Mapping[str, object], search: Search) -> PageRewrite:
        """Rewrite `question` for the retriever of `card`; `search` is for what a later turn is shown."""


class About(Wire):
    """Answer of `GET /page/about`: what this service lets the page do."""

    judgements: bool
    rewriter: str | None


class Relevant(Wire):
    """One judged document of a question."""

    id: str
    grade: int
    title: str


class Judgements(Wire):
    """Answer of `GET /page/judgements`: the relevant documents, the highest grade first."""

    relevant: list[Relevant]


class AskedUtterance(RequestBody):
    """What one side said before a question."""

    role: Literal["user", "assistant"]
    text: str = Field(min_length=1, max_length=MAX_UTTERANCE)


AskedHistory = Annotated[list[AskedUtterance], Field(max_length=MAX_HISTORY)]
"""The conversation before a question, oldest utterance first."""


def utterances(history: Sequence[AskedUtterance]) -> tuple[Utterance, ...]:
    """The plain form of a history."""
    return tuple(Utterance(entry.role, entry.text) for entry in history)


class PageRewriteRequest(RequestBody):
    """Body of `POST /page/rewrite`."""

    question: str = Field(min_length=1, max_length=MAX_QUESTION)
    options: list[Annotated[str, Field(max_length=MAX_QUESTION)]] = Field([], max_length=MAX_OPTIONS)
    history: AskedHistory = Field([])
    question_id: str = Field("", max_length=MAX_QUESTION)
    """The id of a question of the service; its searches between turns leave out the documents that it excludes."""


def page_router(
    environment: Environment,
    config: EnvironmentConfig,
    rank: Rank,
    writer: Writer | None = None,
) -> APIRouter:
    """The routes of the page, not part of the OpenAPI schema (the trainer's)."""
    router = APIRouter(include_in_schema=False)
    body, headers = _page()
    writing = asyncio.Lock()
    if config.playground:
        log.warning(
            "env.playground is on: this service shows relevant documents to everyone who can reach it (and has the "
            "token, where one is set). It is for people; train against another one."
        )

    @router.get("/")
    async def page() -> Response:
        """The playground. It holds no data: what it shows, it asks for with the token."""
        return Response(body, media_type="text/html; charset=utf-8", headers=headers)

    @router.get("/page/about")
    async def about() -> About:
        """What may be asked here."""
        return About(judgements=config.playground, rewriter=writer.name if writer else None)

    @router.get("/page/judgements")
    def judgements(question_id: str) -> Judgements:  # in a thread: a file that was touched is read whole
        """The relevant documents of a question, where the owner shows them."""
        if not config.playground:
            raise HTTPException(
                403,
                "this service shows no judgement, so that whoever trains against it cannot see one. To look at "
                "relevant documents, start a service of your own with env.playground=true and train against another.",
            )
        try:
            grades = relevant(environment.judgements(question_id))
        except KeyError:
            raise HTTPException(404, f"unknown question id {question_id!r}; take ids from GET /v1/questions.") from None
        ordered = sorted(grades.items(), key=lambda item: (-item[1], item[0]))
        with environment.intact():
            entries = [
                Relevant(id=name, grade=grade, title=environment.document(name).title) for name, grade in ordered
            ]
        return Judgements(relevant=entries)

    @router.post("/page/rewrite")
    async def rewrite(request: PageRewriteRequest) -> PageRewrite:
        """Generate a rewrite; the first call loads the model. One at a time."""
        if writer is None:
            raise HTTPException(
                404, "no rewriter is configured here; start the service with `querylect serve CONFIG --rewriter RUN`."
            )
        question = Question("page", request.question, tuple(request.options), utterances(request.history))
        if not all(map(is_unicode, (question.in_context, *question.options))):
            raise HTTPException(422, "the question holds half of a surrogate pair, which is no text.")
        if writing.locked():
            message = "another rewrite is being generated; ask again when it is done"
            raise HTTPException(503, message, {"Retry-After": "1"})
        async with writing:
            try:
                search = partial(_search, environment, rank, asyncio.get_running_loop(), request.question_id)
                generated = await asyncio.to_thread(writer, question, environment.card, search)
            except (RequestError, EnvironmentUnavailableError):
                raise
            except QuerylectError as error:
                raise HTTPException(500, f"the rewriter {writer.name} failed: {error}") from error
        return generated

    return router


def _search(
    environment: Environment,
    rank: Rank,
    loop: asyncio.AbstractEventLoop,
    question_id: str,
    plans: Sequence[SearchPlan],
) -> list[list[HitBody]]:
    """`Search` for a question from a thread beside the loop in which the service searches."""
    searched = [environment.plan_for(question_id, plan) for plan in plans]

    async def ranked() -> Sequence[Sequence[RankedHit]]:
        return await rank(searched)

    return read_hits(environment, asyncio.run_coroutine_threadsafe(ranked(), loop).result())


@cache
def _page() -> tuple[bytes, dict[str, str]]:
    """The file, and headers that let the browser run its own style and script and talk to this service alone."""
    body = PAGE.read_bytes()
    policy = {
        "default-src": "'none'",
        "style-src": _hashes(body, b"style"),
        "script-src": _hashes(body, b"script"),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return body, {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _hashes(body: bytes, tag: bytes) -> str:
    """The CSP sources of every inline element of that tag."""
    elements = re.findall(rb"<" + tag + rb">(.*?)</" + tag + rb">", body, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(element).digest()).decode()}'" for element in elements)
