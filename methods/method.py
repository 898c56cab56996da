"""A method: several model calls and searches that together find the context of a question, or answer it.

A method is an async function of one question, and reads in the order of its paper:

    async def reworded(question: Question, ask: Ask, search: Search, settings: OneQueryConfig) -> Result:
        reply = await ask(f"Say in other words: {question.text}", sampling(settings))
        ranking = await search(SearchPlan.of(answer_text(reply), k=settings.k))
        return Result(ranking.documents)

Calls that do not depend on each other are awaited together (`asyncio.gather`). The runner advances every question until
it waits. Then all prompts of the same sampling go to the model in one batch, all plans for the same source to its
searcher, in the order of the questions, and every question goes on. So the content of a batch, and with it a local
model's floats, depends on the questions alone and never on time.

Where a model or a retriever does not answer, the call raises StageError, which ends the question with a failure: it is
counted and never scored as 0.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from ..configs.methods import AskingConfig
from ..data.types import Document, Question
from ..envs.client.base import EnvironmentApi
from ..envs.plan import SearchPlan
from ..envs.schemas import PlanResult
from ..errors import ConfigError, EnvironmentUnavailableError
from ..llms.access import Llm
from ..llms.base import LlmResponse, Prompt, SamplingParams, complete_sum, outside_loop
from ..llms.prose import without_end_of_turn, without_thinking
from ..llms.structured import Form, FormPrompt, Structured, ask_structured

log = logging.getLogger(__name__)

MISSING = "no reply"
"""The failure of a method whose model did not reply."""
GARBLED = "not of the form that was asked for"
"""The failure where a reply was not of its form, even after one repair."""
NO_RANKING = "no ranking"
"""The failure of a method whose retriever did not answer."""

Role = Literal["writer", "reader"]
"""Which of two models is asked: the reader writes answers and drafts of them, the writer everything else."""
T = TypeVar("T")
Serve = Callable[[list[Any]], Sequence[Any]]
Call = Callable[[Hashable, Serve, Any], Coroutine[Any, Any, Any]]
"""Awaits the answer to one item: (key, serve, item). `serve` answers all items with an equal key at once."""


class StageError(Exception):
    """A stage without an outcome: `failure` says why, `notes` are those of the result."""

    def __init__(self, failure: str, **notes: object) -> None:
        super().__init__(failure)
        self.failure, self.notes = failure, notes


@dataclass(frozen=True, slots=True)
class SearchResults:
    """A ranking, best first."""

    documents: tuple[Document, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """How a method ended."""

    documents: tuple[Document, ...] = ()
    """The context for the reader, in display order."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Intermediate results as plain data: hypotheses, queries, judgements."""
    failure: str = ""
    """Why there is nothing to read; "" if the method finished. No documents without a failure is a valid result."""
    answer: str | None = None
    """The final answer, for methods that write it themselves."""
    cut: bool = False
    """Whether that answer was cut at its token limit."""
    sources: tuple[str, ...] = ()
    """The knowledge base of each document, if the method searches several."""


@dataclass(slots=True)
class QuestionCost:
    """The costs of one question."""

    calls: int = 0
    """Answers that were sampled, cached ones included: n samples of a prompt are n calls, a repaired form is two."""
    prompt_tokens: int | None = 0
    """Tokens read; None if the model does not report them for every reply. `tokens` counts those written."""
    tokens: int | None = 0
    searches: int = 0
    truncated: int = 0
    """Texts of the searches that were longer than a query of the retriever may be, and were read only in part."""
    cut: int = 0
    """Texts written up to their token limit and cut there; judgements by the first token alone are none."""

    def add(self, reply: LlmResponse) -> None:
        self.calls += len(reply.texts)
        self.cut += sum(not (text.finished or text.first) for text in reply.texts)
        self.prompt_tokens = complete_sum([self.prompt_tokens, reply.prompt_tokens])
        self.tokens = complete_sum([self.tokens, reply.tokens])


@dataclass(frozen=True, slots=True)
class MethodRun:
    """The result of one question."""

    question: Question
    result: Result
    cost: QuestionCost


class CrossEncoder(Protocol):
    """Scores pairs of a question and a document."""

    def scores(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """One score for each text; higher is better."""


@dataclass(frozen=True)
class Ask:
    """Asks a model for one question. All raise StageError where it does not reply."""

    runner: "Runner"
    call: Call
    cost: QuestionCost

    async def __call__(self, prompt: Prompt | str, draw: SamplingParams, role: Role = "writer") -> LlmResponse:
        """The reply to one prompt; a text is one user message."""
        model = self._model(role)
        prompt = Prompt.of(prompt) if isinstance(prompt, str) else prompt
        reply: LlmResponse | None = await self.call((id(model), draw), partial(model.ask, draw=draw), prompt)
        if reply is None:
            raise StageError(MISSING)
        self.cost.add(reply)
        return reply

    async def structured(
        self, prompt: FormPrompt, form: type[Form], draw: SamplingParams, role: Role = "writer"
    ) -> Structured[Form]:
        """As `json`, with the text that was read, or with what is wrong with it."""
        model = self._model(role)
        serve = partial(ask_structured, model, form=form, draw=draw)
        outcome: Structured[Form] = await self.call((id(model), form, draw), serve, prompt)
        for reply in outcome.replies:
            self.cost.add(reply)
        if outcome.missing:
            raise StageError(MISSING)
        return outcome

    async def json(self, prompt: FormPrompt, form: type[Form], draw: SamplingParams, role: Role = "writer") -> Form:
        """An answer of this form, repaired once; StageError where it is of another form even then."""
        outcome = await self.structured(prompt, form, draw, role)
        if outcome.value is None:
            raise StageError(GARBLED, text=outcome.text, problem=outcome.failure)
        return outcome.value

    def _model(self, role: Role) -> Llm:
        model = self.runner.reader if role == "reader" and self.runner.reader is not None else self.runner.llm
        assert model is not None, "the method asks a language model"
        return model


@dataclass(frozen=True)
class Search:
    """Searches knowledge bases for one question."""

    runner: "Runner"
    call: Call
    cost: QuestionCost
    question: Question

    async def __call__(self, plan: SearchPlan, source: str = "") -> SearchResults:
        """The results of a plan in a knowledge base; "" is the only one, or the first. Raises StageError where the
        retriever does not answer before its deadline."""
        searchers = self.runner.searchers
        if self.question.excluded:  # a knowledge base is searched without knowing whose question it is
            raise ConfigError(
                f"the question {self.question.id!r} excludes documents ({self.question.excluded[0]!r} among them), "
                "which a method cannot leave out of its searches. Compare systems with a spec of querylect eval."
            )
        name = source or next(iter(searchers), source)
        if name not in searchers:
            raise ConfigError(f"the method searches the knowledge base {source!r}; given are {list(searchers)}")

        def serve(plans: list[SearchPlan]) -> Sequence[PlanResult | None]:
            try:
                return searchers[name].search(plans, with_text=True)
            except EnvironmentUnavailableError as error:
                log.warning("%s%d plans got no ranking: %s", f"{source}: " if source else "", len(plans), error)
                return [None] * len(plans)

        self.cost.searches += len(plan.probes)
        result: PlanResult | None = await self.call(("search", name), serve, plan)
        if result is None:
            raise StageError(NO_RANKING, **({"down": source} if source else {}))
        self.cost.truncated += result.truncated
        documents, scores = (hit.document for hit in result.ranking), (hit.score for hit in result.ranking)
        return SearchResults(tuple(documents), tuple(scores))

    async def scores(self, question: str, documents: Sequence[Document]) -> Sequence[float]:
        """The cross-encoder's score of each document; higher is better."""
        encoder = self.runner.cross_encoder
        assert encoder is not None, "the method puts documents in order with a cross-encoder"
        return encoder.scores(question, [document.contents for document in documents])


MethodFunction = Callable[[Question, Ask, Search], Coroutine[Any, Any, Result]]


@dataclass(frozen=True)
class Runner:
    """The models and searchers that methods run with."""

    llm: Llm | None
    searchers: Mapping[str, EnvironmentApi]
    """By source; "" (no source named) is the first one."""
    cross_encoder: CrossEncoder | None = None
    reader: Llm | None = None
    """Writes answers and drafts of them, for methods that answer themselves; `llm` if None."""

    def run(self, method: MethodFunction, questions: Sequence[Question]) -> list[MethodRun]:
        """The result of `method` for each question, in their order.

        Raises ConfigError if the method needs a source that is missing, or searches for a question that excludes
        documents, and as `Llm.ask` and the clients' `search`. An environment that does not answer raises nothing: it is
        a failure of the questions.
        """

        async def job(question: Question, call: Call) -> MethodRun:
            cost = QuestionCost()
            try:
                result = await method(question, Ask(self, call, cost), Search(self, call, cost, question))
            except StageError as error:
                result = Result(notes=error.notes, failure=error.failure)
            return MethodRun(question, result, cost)

        return outside_loop(lambda: _run_batched([partial(job, question) for question in questions]))


def _run_batched(jobs: Sequence[Callable[[Call], Coroutine[Any, Any, T]]]) -> list[T]:
    """The results of coroutines that run side by side and wait for nothing but their calls, which are served in
    batches. Raises what a job or a server of calls raises."""
    if not jobs:
        return []
    loop = asyncio.new_event_loop()
    pending: list[tuple[int, Hashable, Serve, Any, asyncio.Future[Any]]] = []

    async def call(job: int, key: Hashable, serve: Serve, item: Any) -> Any:
        future = loop.create_future()
        pending.append((job, key, serve, item, future))
        return await future

    async def all_wait() -> None:
        while {number for number, task in enumerate(tasks) if not task.done()} - {job for job, *_ in pending}:
            await asyncio.sleep(0)

    tasks = [loop.create_task(job(partial(call, number))) for number, job in enumerate(jobs)]
    try:
        while True:
            loop.run_until_complete(all_wait())
            results = [task.result() for task in tasks if task.done()]
            if not pending:
                return results
            batches: dict[Hashable, list[Any]] = {}
            for waiting in sorted(pending, key=lambda call: call[0]):
                batches.setdefault(waiting[1], []).append(waiting)
            pending.clear()
            for batch in batches.values():
                answers = batch[0][2]([item for _, _, _, item, _ in batch])
                for (*_, future), answer in zip(batch, answers, strict=True):
                    future.set_result(answer)
    finally:
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))
        loop.close()


def sampling(settings: AskingConfig, n: int = 1) -> SamplingParams:
    """How `n` answers to a prompt of a method with these settings are sampled."""
    return SamplingParams(n, settings.temperature, max_tokens=settings.max_tokens)


def answer_text(reply: LlmResponse) -> str:
    """The first text of a reply without its thinking."""
    return without_end_of_turn(without_thinking(reply.texts[0].text))
