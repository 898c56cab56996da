"""Adds rewriting to an environment service: `POST /v1/rewrite` and `POST /v1/ask`.

The routes are added to the service's application and share its token, body limits, log and error handling. The model
runs in one thread and batches the questions of concurrent requests; the event loop only waits.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, FastAPI, HTTPException
from pydantic import Field, StrictBool

from ..data.types import Question
from ..envs.plan import SearchPlan
from ..envs.schemas import MAX_K, MAX_OPTIONS, MAX_QUESTION, AskedHistory, HitBody, RequestBody, Wire, utterances
from ..envs.server.service import ServiceState
from .load import Trained, only_member
from .openai_protocol import add_openai_routes
from .results import RewriteResult
from .rewriter import Rewriter
from .served import ServedRewriter

MAX_QUESTIONS = 64
"""Maximum number of questions per request."""
MAX_TURNS = 4
"""Maximum number of turns per question."""

Text = Annotated[str, Field(min_length=1, max_length=MAX_QUESTION)]


class AskedBody(RequestBody):
    """A question with answer options, and what was said before it."""

    text: Text
    options: list[Annotated[str, Field(max_length=MAX_QUESTION)]] = Field([], max_length=MAX_OPTIONS)
    history: AskedHistory = Field([])

    @property
    def question(self) -> Question:
        return Question("", self.text, tuple(self.options), utterances(self.history))


Questions = Annotated[
    list[Text | AskedBody], Field(min_length=1, fail_fast=True, json_schema_extra={"maxItems": MAX_QUESTIONS})
]


class RewriteRequest(RequestBody):
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
    with_text: StrictBool = True
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
    stopped: bool = False
    """Whether the policy stopped: the plan is that of the last search, or else the question."""
    unsearched: bool = False
    """Whether it stopped before any search: the question is to be answered without documents."""

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
            stopped=result.stopped,
            unsearched=result.unsearched,
        )


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


def open_rewriter(
    trained: Trained, env: str | None, turn: int | None = None, openai: bool = False
) -> Callable[[FastAPI], None]:
    """Load a rewriter for a service; return the function that mounts its routes.

    `env` selects the environment of a policy trained for several, `turn` overrides the one selected on validation,
    `openai` adds OpenAI's protocol. Raises as `only_member` and `load_policy`.
    """
    rewriter = Rewriter(only_member(trained, env if env in trained.members else None), turn=turn)
    return partial(mount, rewriter=rewriter, openai=openai)


def mount(app: FastAPI, rewriter: Rewriter, openai: bool = False) -> None:
    """Add the routes to a service (envs/server/app.py), with `openai` also those of OpenAI's protocol.

    Raises ConfigError if the service's retriever does not fit.
    """
    service: ServiceState = app.state.service
    rewriter.prepare(service.environment.card)
    served = ServedRewriter(service, rewriter)
    app.include_router(_router(served))
    if openai:
        add_openai_routes(app, served)


def _router(served: ServedRewriter) -> APIRouter:
    router = APIRouter()
    rewriter, environment = served.rewriter, served.service.environment
    card = environment.card

    @router.post("/v1/rewrite", response_model=RewriteAnswer)
    async def rewrite(body: RewriteRequest) -> RewriteAnswer:
        """Rewrite every question; the served index is searched where a later turn is shown documents."""
        questions = _questions(body)
        served.admit()
        results = await served.finish(rewriter.arewrite(questions, retriever=card, turn=body.turn, client=served))
        return RewriteAnswer(rewriter=rewriter.name, rewrites=[RewriteBody.of(result) for result in results])

    @router.post("/v1/ask", response_model=AskAnswer)
    async def ask(body: AskRequest) -> AskAnswer:
        """Rewrite every question and search, turn after turn, each shown what the one before it found."""
        questions = _questions(body)
        served.admit()
        results = await served.finish(rewriter.asearch(questions, served, turns=body.turns, retriever=card, k=body.k))
        answers = []
        for result in results:
            ranking = None if result.ranking is None else [_hit_body(hit, body.with_text) for hit in result.ranking]
            turns = [RewriteBody.of(turn.rewrite) for turn in result.turns]
            answers.append(FoundBody(turns=turns, ranking=ranking, failure=result.failure))
        return AskAnswer(index_hash=environment.index_hash, rewriter=rewriter.name, answers=answers)

    return router


def _questions(body: RewriteRequest | AskRequest) -> list[Question]:
    """The questions of a request. Raises HTTPException 413 for too many."""
    if len(body.questions) > MAX_QUESTIONS:
        raise HTTPException(
            413,
            f"{len(body.questions)} questions in one request; at most {MAX_QUESTIONS} are taken. Send them in parts.",
        )
    return [Question("", item) if isinstance(item, str) else item.question for item in body.questions]


def _hit_body(hit: HitBody, with_text: bool) -> HitBody:
    return hit if with_text else HitBody(id=hit.id, score=hit.score)
