"""Adds rewriting to an environment service: `POST /v1/rewrite` and `POST /v1/ask`.

The routes are added to the service's application and share its token, body limits, log and error handling. The model
runs in one thread and batches the questions of concurrent requests; the event loop only waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, FastAPI, HTTPException
from pydantic import Field

from ..data.types import Question
from ..envs.environment import Environment
from ..envs.plan import SearchPlan
from ..envs.schemas import (
    MAX_K,
    MAX_OPTIONS,
    MAX_QUESTION,
    AskedHistory,
    HitBody,
    PlanResult,
    RequestBody,
    Wire,
    utterances,
)
from ..envs.server.app import Extend
from ..envs.server.batching import Batcher, OverloadedError
from ..errors import EnvironmentUnavailableError, QuerylectError, RequestError
from .batching import ClosedError
from .load import Trained, only_member
from .results import RewriteResult
from .rewriter import Rewriter

MAX_QUESTIONS = 64
"""Maximum number of questions per request."""
MAX_TURNS = 4
"""Maximum number of turns per question."""
MAX_WAITING = 256
"""Number of queued questions from which on new requests are refused."""

Value = TypeVar("Value")
Text = Annotated[str, Field(min_length=1, max_length=MAX_QUESTION)]


class AskedBody(RequestBody):
    """A question with answer options, and what was said before it."""

    text: Text
    options: list[Annotated[str, Field(max_length=MAX_QUESTION)]] = Field([], max_length=MAX_OPTIONS)
    history: AskedHistory = Field([])

    @property
    def question(self) -> Question:
        return Question("", self.text, tuple(self.options), utterances(self.history))


Questions = Annotated[list[Text | AskedBody], Field(min_length=1, max_length=MAX_QUESTIONS, fail_fast=True)]


class RewriteRequestBody(RequestBody):
    """Body of `POST /v1/rewrite`."""

    questions: Questions
    turn: Annotated[int, Field(ge=1, le=MAX_TURNS)] | None = None
    """Whose answer is given; the turn that won on validation where it is not said."""


class AskRequest(RequestBody):
    """Body of `POST /v1/ask`."""

    questions: Questions
    turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] | None = None
    """The last turn; the one that won on validation where it is not said. 1 rewrites without looking at documents."""
    k: Annotated[int, Field(ge=1, le=MAX_K)] | None = None
    """Documents of the ranking; as many as a plan of the rewriter asks for."""


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
    stopped: bool = False
    """Whether the policy stopped: the plan is that of the last search, or else the question."""
    unsearched: bool = False
    """Whether it stopped before any search: the question is to be answered without documents."""

    @classmethod
    def of(cls, result: RewriteResult) -> "RewriteBody":
        """The wire form of a result."""
        return cls.model_validate(result, from_attributes=True)


class RewriteAnswer(Wire):
    """One rewrite for each question, in their order."""

    rewriter: str
    rewrites: list[RewriteBody]


class FoundBody(Wire):
    """What was found for one question."""

    turns: list[RewriteBody]
    ranking: list[HitBody] | None
    """That of the last turn, best first; where it failed, that of the question itself. Null where the policy stopped
    before any search (`unsearched` of the last turn)."""
    failure: str | None
    """Why the last answer could not be used; null where it could."""


class AskAnswer(Wire):
    """One ranking for each question, in their order."""

    index_hash: str
    rewriter: str
    answers: list[FoundBody]


def open_rewriter(trained: Trained, env: str | None, turn: int | None = None) -> Extend:
    """Load a rewriter for a service; return the function that mounts its routes.

    `env` selects the environment of a policy trained for several, `turn` overrides the one selected on validation.
    Raises as `only_member` and `load_policy`.
    """
    return partial(mount, rewriter=Rewriter(only_member(trained, env if env in trained.members else None), turn=turn))


def mount(app: FastAPI, rewriter: Rewriter) -> Callable[[], None]:
    """Add the routes to a service (envs/server/app.py); returns what closes the rewriter.

    Raises ConfigError if the service's retriever does not fit.
    """
    environment: Environment = app.state.environment
    rewriter.prepare(environment.info().retriever)
    app.include_router(_router(environment, app.state.batcher, rewriter))
    return rewriter.close


def _router(environment: Environment, batcher: Batcher, rewriter: Rewriter) -> APIRouter:
    router, info, searcher = APIRouter(), environment.info(), _ServiceSearcher(environment, batcher)

    @router.post("/v1/rewrite", response_model=RewriteAnswer)
    async def rewrite(body: RewriteRequestBody) -> RewriteAnswer:
        """Rewrite every question; the served index is searched where a later turn is shown documents."""
        questions = _admitted(body, rewriter)
        work = rewriter.arewrite(questions, retriever=info.retriever, turn=body.turn, client=searcher)
        return RewriteAnswer(
            rewriter=rewriter.name, rewrites=[RewriteBody.of(result) for result in await _finished(work)]
        )

    @router.post("/v1/ask", response_model=AskAnswer)
    async def ask(body: AskRequest) -> AskAnswer:
        """Rewrite every question and search, turn after turn, each shown what the one before it found."""
        questions = _admitted(body, rewriter)
        work = rewriter.asearch(questions, searcher, turns=body.turns, retriever=info.retriever, k=body.k)
        answers = []
        for result in await _finished(work):
            ranking = None if result.ranking is None else list(result.ranking)
            turns = [RewriteBody.of(turn.rewrite) for turn in result.turns]
            answers.append(FoundBody(turns=turns, ranking=ranking, failure=result.failure))
        return AskAnswer(index_hash=info.index_hash, rewriter=rewriter.name, answers=answers)

    return router


@dataclass(frozen=True, slots=True)
class _ServiceSearcher:
    """The service's own batched search, with texts."""

    environment: Environment
    batcher: Batcher

    async def search(self, plans: Sequence[SearchPlan]) -> list[PlanResult]:
        rankings = await self.batcher.rank(plans)
        return await asyncio.to_thread(lambda: [self.environment.result(ranking) for ranking in rankings])


def _admitted(body: RewriteRequestBody | AskRequest, rewriter: Rewriter) -> list[Question]:
    """The questions of a request. OverloadedError if the queue is full."""
    waiting = rewriter.waiting
    if waiting >= MAX_WAITING:
        raise OverloadedError(
            f"{waiting} questions already wait, and more are taken while fewer than {MAX_WAITING} do; ask again later, "
            "or start another replica"
        )
    return [Question("", item) if isinstance(item, str) else item.question for item in body.questions]


async def _finished(work: Awaitable[Value]) -> Value:
    """The result of `work`.

    Raises OverloadedError if the service ends first, HTTPException 500 if the rewriter fails, and the errors of a
    search.
    """
    try:
        return await work
    except ClosedError as error:
        raise OverloadedError("the service is going down; ask another replica") from error
    except (RequestError, EnvironmentUnavailableError):
        raise
    except QuerylectError as error:
        raise HTTPException(500, f"the rewriter failed: {error}") from error
