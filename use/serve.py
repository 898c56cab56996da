"""An environment service that also rewrites: `POST /v1/rewrite` and `POST /v1/ask`, and the button of its page.

The routes stand on the service's own application, so its token, its limits to bodies, its log and its errors are theirs
too. The model works in one thread and takes the questions of concurrent requests together; the event loop only waits.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from pydantic import Field

from ..data.types import Question
from ..envs.batching import Hits, OverloadedError
from ..envs.environment import Environment
from ..envs.gate import note
from ..envs.page.router import MAX_OPTIONS, MAX_QUESTION, Search, Written
from ..envs.plan import SearchPlan
from ..envs.wire import MAX_K, Ask, HitBody, Wire
from ..errors import EnvironmentUnavailableError, QuerylectError, RequestError
from .desk import ClosedError
from .results import RewriteResult
from .rewriter import Rewriter
from .trained import only_member, open_trained

MAX_QUESTIONS = 64
"""Most questions of one request."""
MAX_WAITING = 256
"""Once so many questions wait, no further request is let in."""
GOING_DOWN = "the service is going down; ask another replica, or again after its restart"
MAX_TURNS = 4
"""Most turns of one question."""

Value = TypeVar("Value")
Text = Annotated[str, Field(min_length=1, max_length=MAX_QUESTION)]


class AskedBody(Ask):
    """A question with answer options."""

    text: Text
    options: list[Annotated[str, Field(max_length=MAX_QUESTION)]] = Field([], max_length=MAX_OPTIONS)


class RewriteRequest(Ask):
    """Body of `POST /v1/rewrite`."""

    questions: list[Text | AskedBody] = Field(min_length=1)
    turn: Annotated[int, Field(ge=1, le=MAX_TURNS)] | None = None
    """Whose answer is given; the turn that won on validation where it is not said."""


class AskRequest(Ask):
    """Body of `POST /v1/ask`."""

    questions: list[Text | AskedBody] = Field(min_length=1)
    turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] | None = None
    """The last turn; the one that won on validation where it is not said. 1 rewrites without looking at documents."""
    k: Annotated[int, Field(ge=1, le=MAX_K)] | None = None
    """Documents of the ranking; as many as a plan of the rewriter asks for."""
    with_text: bool = True
    """Whether hits carry title and text besides id and score."""


class RewriteBody(Wire):
    """One answer of the policy."""

    text: str
    """What is searched, as one text; the question where the answer failed."""
    rewrites: list[str]
    """As the policy wrote them; empty where the answer failed."""
    think: str
    plan: SearchPlan
    """What is searched; the question where the answer failed."""
    turn: int
    failure: str | None
    """Why the answer could not be used; null where it could."""
    fallback: bool
    """Whether the question itself stands in place of a rewrite."""

    @classmethod
    def of(cls, result: RewriteResult) -> "RewriteBody":
        """The wire form of a result."""
        return cls(
            text=result.text,
            rewrites=list(result.rewrites),
            think=result.think,
            plan=result.plan,
            turn=result.turn,
            failure=result.failure,
            fallback=result.fallback,
        )


class RewriteAnswer(Wire):
    """One rewrite for each question, in their order."""

    rewriter: str
    rewrites: list[RewriteBody]


class FoundBody(Wire):
    """What was found for one question."""

    turns: list[RewriteBody]
    ranking: list[HitBody] | None
    """That of the last turn, best first; where it failed, that of the question itself."""
    failure: str | None
    """Why the last answer could not be used; null where it could."""


class AskAnswer(Wire):
    """One ranking for each question, in their order."""

    index_hash: str
    rewriter: str
    answers: list[FoundBody]


class Room(Protocol):
    """What an environment service offers to routes beside its own."""

    environment: Environment

    async def rank(self, request: Request, plans: Sequence[SearchPlan]) -> list[Hits]:
        """Rank plans that keep to the limits."""
        ...

    def ranking(self, hits: Hits, with_text: bool) -> list[dict[str, Any]]:
        """The wire form of a ranking."""
        ...

    def when_given_up(self, call: Callable[[], object]) -> None:
        """Have something called when what waits is given up."""
        ...


class PageWriter:
    """The rewriter behind the button of the service's page."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.name = rewriter.name
        self._rewriter = rewriter

    def __call__(self, question: Question, card: Mapping[str, Any], search: Search | None = None) -> Written:
        """The greedy answer of the turn that is used; `search` is what is searched between turns; the environment of
        the run where it is None.

        Raises as `Rewriter.rewrite`, OverloadedError where the service goes down first.
        """
        try:
            result = self._rewriter.rewrite(question, retriever=card, client=_PageSearcher(search) if search else None)
        except ClosedError as error:
            raise OverloadedError(GOING_DOWN) from error
        plan = None if result.fallback else result.plan
        return Written(text=result.answer, plan=plan, think=result.think, failure=result.failure or "")


@dataclass(frozen=True, slots=True)
class _PageSearcher:
    """What the page's router searches with, as a rewriter asks it."""

    found: Search

    def search(self, plans: Sequence[SearchPlan]) -> Sequence[Sequence[HitBody]]:
        """One ranking with texts for each plan."""
        return self.found(plans)


def open_rewriter(
    name: str,
    env: str | None,
    checkpoint: str | None = None,
    revision: str | None = None,
    turn: int | None = None,
) -> tuple[PageWriter, Callable[[FastAPI], None]]:
    """Load what `name` leads to, for the environment `env` of a policy for several: what a service is given.

    `turn` instead of the one that won on validation; `checkpoint` and `revision` as of `open_trained`. Raises as that
    and `load_policy`.
    """
    trained = open_trained(name, checkpoint=checkpoint, revision=revision)
    rewriter = Rewriter(only_member(trained, env if env in trained.members else None), turn=turn)
    return PageWriter(rewriter), partial(mount, rewriter=rewriter)


def mount(app: FastAPI, rewriter: Rewriter) -> None:
    """Add the routes to a service (envs/service.py). Raises ConfigError where the two do not fit."""
    room: Room = app.state.room
    rewriter.prepare(room.environment.card)
    over = asyncio.Event()
    room.when_given_up(rewriter.close)
    room.when_given_up(over.set)
    app.include_router(_router(room, rewriter, over))


def _router(room: Room, rewriter: Rewriter, over: asyncio.Event) -> APIRouter:
    router = APIRouter()
    card = room.environment.card

    @router.post("/v1/rewrite", response_model=RewriteAnswer)
    async def rewrite(body: RewriteRequest, request: Request) -> Any:
        """Rewrite every question; the served index is searched where a later turn is shown documents."""
        questions = _let_in(body, request, rewriter)
        work = rewriter.arewrite(questions, retriever=card, turn=body.turn, client=_Searcher(room, request))
        results = await _while_connected(request, work, over)
        if results is None:
            return _gone()
        return RewriteAnswer(rewriter=rewriter.name, rewrites=[RewriteBody.of(result) for result in results])

    @router.post("/v1/ask", response_model=AskAnswer)
    async def ask(body: AskRequest, request: Request) -> Any:
        """Rewrite every question and search, turn after turn, each shown what the one before it found."""
        questions = _let_in(body, request, rewriter)
        searched = rewriter.asearch(questions, _Searcher(room, request), turns=body.turns, retriever=card, k=body.k)
        found = await _while_connected(request, searched, over)
        if found is None:
            return _gone()
        answers = []
        for one in found:
            ranking = None if one.ranking is None else [_shown(hit, body.with_text) for hit in one.ranking]
            turns = [RewriteBody.of(turn.rewrite) for turn in one.turns]
            answers.append(FoundBody(turns=turns, ranking=ranking, failure=one.failure))
        return AskAnswer(index_hash=room.environment.index_hash, rewriter=rewriter.name, answers=answers)

    return router


class _Searcher:
    """The service's own batched search, with texts, on behalf of one request."""

    def __init__(self, room: Room, request: Request) -> None:
        self._room, self._request = room, request

    async def search(self, plans: Sequence[SearchPlan]) -> list[list[HitBody]]:
        room = self._room
        found = await room.rank(self._request, plans)

        def read() -> list[list[HitBody]]:
            rankings = [[HitBody(**hit) for hit in room.ranking(hits, with_text=True)] for hits in found]
            room.environment.refuse_damage()
            return rankings

        return await asyncio.to_thread(read)


def _let_in(body: RewriteRequest | AskRequest, request: Request, rewriter: Rewriter) -> list[Question]:
    """The questions of a request. HTTPException 413 for too many, OverloadedError where too many wait already."""
    note(request.scope, questions=len(body.questions))
    if len(body.questions) > MAX_QUESTIONS:
        raise HTTPException(
            413,
            f"{len(body.questions)} questions in one request; at most {MAX_QUESTIONS} are taken. Send them in parts.",
        )
    waiting = rewriter.waiting
    if waiting >= MAX_WAITING:
        wait = math.ceil(waiting * rewriter.seconds_per_question)
        raise OverloadedError(
            f"{waiting} questions already wait, and more are taken while fewer than {MAX_WAITING} do; ask again later, "
            "or start another replica",
            retry_after=min(max(wait, 1), 30),
        )
    return [
        Question("", one) if isinstance(one, str) else Question("", one.text, tuple(one.options))
        for one in body.questions
    ]


async def _while_connected(request: Request, work: Coroutine[Any, Any, Value], over: asyncio.Event) -> Value | None:
    """What comes of `work`; None where the client goes away before, and then nothing more is done for it.

    Raises OverloadedError where the service goes down first (`over`), also while the model works on it, HTTPException
    500 for a rewriter that fails, and what a search raises.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    ending = asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait({working, leaving, ending}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return await working
        if ending.done():
            raise OverloadedError(GOING_DOWN)
        return None
    except ClosedError as error:
        raise OverloadedError(GOING_DOWN) from error
    except (RequestError, OverloadedError, EnvironmentUnavailableError):
        raise
    except QuerylectError as error:
        raise HTTPException(500, f"the rewriter failed: {error}") from error
    finally:
        for task in (working, leaving, ending):
            task.cancel()
        await asyncio.gather(working, leaving, ending, return_exceptions=True)


async def _left(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _gone() -> Response:
    """For nobody: the connection is closed. 499 is what the log says."""
    return Response(status_code=499)


def _shown(hit: HitBody, with_text: bool) -> HitBody:
    return hit if with_text else HitBody(id=hit.id, score=hit.score)
