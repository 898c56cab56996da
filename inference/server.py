"""Adds rewriting to an environment service: `POST /v1/ask` rewrites questions and searches.

The route is added to the service's application and shares its token, body limits, log and error handling. Requests are
answered in threads, one after another where the model is in this process; the event loop only waits.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI
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
from ..envs.server.batching import Batcher, OverloadedError
from ..errors import EngineUnavailableError
from .rewriter import Rewriter

MAX_QUESTIONS = 64
"""Maximum number of questions per request."""
MAX_TURNS = 4
"""Maximum number of turns per question."""
MAX_WAITING = 256
"""Number of questions in progress from which on new requests are refused."""

Text = Annotated[str, Field(min_length=1, max_length=MAX_QUESTION)]


class AskedBody(RequestBody):
    """A question with answer options, and what was said before it."""

    text: Text
    options: list[Annotated[str, Field(max_length=MAX_QUESTION)]] = Field([], max_length=MAX_OPTIONS)
    history: AskedHistory = Field([])


class AskRequest(RequestBody):
    """Body of `POST /v1/ask`."""

    questions: Annotated[list[Text | AskedBody], Field(min_length=1, max_length=MAX_QUESTIONS, fail_fast=True)]
    turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] | None = None
    """The last turn; by default the one that won on validation. 1 rewrites without looking at documents."""
    k: Annotated[int, Field(ge=1, le=MAX_K)] | None = None
    """Documents of the ranking; by default as many as a plan of the rewriter asks for."""


class RewriteBody(Wire):
    """One answer of the policy and what the retriever said, as `TurnOutcome.record`."""

    question: str
    history: Annotated[list[dict[str, str]], Field(default_factory=list)]
    text: str
    """What is searched, as one text; the question if the answer failed."""
    rewrites: list[str]
    think: str
    plan: SearchPlan
    turn: int
    failure: str | None
    """Why the answer could not be used; null if it could."""
    stopped: bool
    unsearched: bool
    hits: int | None
    """Documents that match a query in the retriever's language; null where words were searched."""
    error: str | None
    """Why the retriever refused such a query."""


class RankedBody(Wire):
    """All turns of one question, and its ranking."""

    turns: list[RewriteBody]
    ranking: list[HitBody] | None
    """That of the last turn, best first; if it failed, that of the question itself. Null if the policy stopped before
    any search (`unsearched` of the last turn)."""
    failure: str | None
    """Why the last answer could not be used; null if it could."""


class AskAnswer(Wire):
    """One ranking for each question, in their order."""

    index_hash: str
    rewriter: str
    answers: list[RankedBody]


def mount(app: FastAPI, rewriter: Rewriter, env: str | None = None) -> Callable[[], None]:
    """Add the route to a service (envs/server/app.py); returns what closes the rewriter.

    `env` names the environment whose prompts a policy trained for several uses; by default those for the served
    retriever. Raises ConfigError if neither fits.
    """
    environment: Environment = app.state.environment
    info, router, in_progress = environment.info(), APIRouter(), 0
    retriever = env or info.retriever
    rewriter.select(retriever)

    @router.post("/v1/ask", response_model=AskAnswer)
    async def ask(body: AskRequest) -> dict[str, Any]:
        """Rewrite every question and search, turn after turn, each shown what the one before it found."""
        nonlocal in_progress
        if in_progress >= MAX_WAITING:
            raise OverloadedError(
                f"{in_progress} questions are in progress, and more are taken while fewer than {MAX_WAITING} are; ask "
                "again later, or start another replica"
            )
        questions = [
            Question("", item)
            if isinstance(item, str)
            else Question("", item.text, tuple(item.options), utterances(item.history))
            for item in body.questions
        ]
        client = _ServiceSearcher(environment, app.state.batcher, asyncio.get_running_loop())
        in_progress += len(questions)
        try:
            results = await rewriter.asearch(questions, client, turns=body.turns, retriever=retriever, k=body.k)
        except EngineUnavailableError as error:
            raise OverloadedError(str(error)) from error
        finally:
            in_progress -= len(questions)
        answers = [
            {
                "turns": [turn.record() for turn in result.turns],
                "ranking": result.ranking,
                "failure": result.failure,
            }
            for result in results
        ]
        return {"index_hash": info.index_hash, "rewriter": rewriter.name, "answers": answers}

    app.include_router(router)
    return rewriter.close


@dataclass(frozen=True, slots=True)
class _ServiceSearcher:
    """The service's own batched search, with texts, for the threads of a rewriter."""

    environment: Environment
    batcher: Batcher
    loop: asyncio.AbstractEventLoop

    def search(self, plans: Sequence[SearchPlan]) -> list[PlanResult]:
        rankings = asyncio.run_coroutine_threadsafe(self.batcher.rank(plans), self.loop).result()
        return [self.environment.result(ranking) for ranking in rankings]
