"""Running a method (methods/method.py) over many questions: prompts and plans of one stage travel together.

Every question advances until it yields steps. Then all prompts of the same draw are asked in one batch, all plans for
the same source are searched in one, and every question goes on with its own outcome, or a list of outcomes for a list
of steps. A question that ended early waits for no other. The order of questions changes no outcome.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from ..configs.llm import AnswerForm
from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..envs.schemas import PlanResult
from ..errors import ConfigError, EnvironmentUnavailableError
from ..llms.access import Llm
from ..llms.base import LlmResponse, Prompt, SamplingParams, complete_sum
from ..llms.structured import AskForm, Role, ask_structured, version_in
from .method import Method, Outcome, PromptStep, ScoreStep, SearchResults, SearchStep, Step, Steps

log = logging.getLogger(__name__)

Kind = TypeVar("Kind", PromptStep, AskForm, SearchStep, ScoreStep)
Key = TypeVar("Key")


class CrossEncoder(Protocol):
    """Scores pairs of a question and a document."""

    def scores(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """One score for each text; higher is better."""


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


@dataclass(frozen=True, slots=True)
class MethodRun:
    """The outcome of one question."""

    question: Question
    outcome: Outcome
    spent: QuestionCost
    prompts: tuple[str, ...]
    """Versions of the prompts that were asked, each once."""


@dataclass(frozen=True)
class Runner:
    """The models and searchers that methods run with."""

    llm: Llm | None
    searchers: Mapping[str, EnvironmentApi]
    """By source; "" (no source named) is the first one."""
    cross_encoder: CrossEncoder | None = None
    reader: Llm | None = None
    """Writes answers and drafts of them, for methods that answer themselves; `llm` if None."""
    form: AnswerForm = "json"
    """How answers of a fixed form are written."""
    max_tokens: int | None = None
    """Upper bound on the tokens of every answer, whatever the method asks for; None: no such bound."""

    def run(self, method: Method, questions: Sequence[Question]) -> list[MethodRun]:
        """The outcome of `method` for each question, in their order.

        Raises ConfigError if the method needs a source, a model or a cross-encoder that is missing, or searches for a
        question that excludes documents, and as `Llm.ask` and the clients' `search`. An environment that does not
        answer raises nothing: the method gets None and decides.
        """
        runs = [_QuestionRun(question, method.steps(question)) for question in questions]
        for run in runs:
            run.advance(None)
        while active := [run for run in runs if run.requests]:
            requests = [request for run in active for request in run.requests]
            for request in requests:
                request.run.prompts |= dict.fromkeys(self._versions(request.step))
            for serve in (self._ask, self._ask_forms, self._search, self._score):
                serve(requests)
            for run in active:
                run.answered()
        return [MethodRun(run.question, run.ended(), run.spent, tuple(run.prompts)) for run in runs]

    def _ask(self, requests: Sequence["_PendingStep"]) -> None:
        for (model, draw), group in _groups(
            requests, PromptStep, lambda step: (self._model(step.role), self._draw(step))
        ):
            replies = model.ask([self._prompt(step) for _, step in group], draw)
            for (request, _), reply in zip(group, replies, strict=True):
                request.run.spend([reply] if reply is not None else [])
                request.answer = reply

    def _ask_forms(self, requests: Sequence["_PendingStep"]) -> None:
        for (model, form, draw, way), group in _groups(
            requests, AskForm, lambda step: (self._model(step.role), step.form, self._draw(step), self._way(step))
        ):
            answers = ask_structured(model, [step.prompt for _, step in group], form, draw, way)
            for (request, _), answer in zip(group, answers, strict=True):
                request.run.spend(answer.replies)
                request.answer = answer

    def _search(self, requests: Sequence["_PendingStep"]) -> None:
        for source, group in _groups(requests, SearchStep, lambda step: step.source):
            _refuse_exclusions([request.run.question for request, _ in group])
            results: Sequence[PlanResult | None]
            try:
                results = self._searcher(source).search([step.plan for _, step in group], with_text=True)
            except EnvironmentUnavailableError as error:
                log.warning("%s%d plans got no ranking: %s", f"{source}: " if source else "", len(group), error)
                results = [None] * len(group)
            for (request, step), result in zip(group, results, strict=True):
                request.run.spent.searches += len(step.plan.probes)
                if result is not None:
                    request.run.spent.truncated += result.truncated
                    documents, scores = (hit.document for hit in result.ranking), (hit.score for hit in result.ranking)
                    request.answer = SearchResults(step.plan, tuple(documents), tuple(scores))

    def _score(self, requests: Sequence["_PendingStep"]) -> None:
        for _, group in _groups(requests, ScoreStep, lambda step: None):
            for request, step in group:
                if self.cross_encoder is None:
                    raise ConfigError("the method puts documents in order with a cross-encoder, and none is given")
                request.answer = self.cross_encoder.scores(step.question, [text.contents for text in step.documents])

    def _prompt(self, step: PromptStep) -> Prompt:
        prompt = step.small if self.form == "lines" and step.small is not None else step.prompt
        return replace(prompt, messages=(*prompt.messages, *step.more)) if step.more else prompt

    def _way(self, step: AskForm) -> AnswerForm:
        """The form of a step's answer: a plain Prompt asks for JSON by itself."""
        return "json" if isinstance(step.prompt, Prompt) else self.form

    def _draw(self, step: PromptStep | AskForm) -> SamplingParams:
        if self.max_tokens is None:
            return step.draw
        return replace(step.draw, max_tokens=min(self.max_tokens, step.draw.max_tokens))

    def _versions(self, step: Step) -> list[str]:
        if isinstance(step, PromptStep):
            return [self._prompt(step).version]
        return [version_in(step.prompt.version, self._way(step))] if isinstance(step, AskForm) else []

    def _model(self, role: Role) -> Llm:
        model = self.reader if role == "reader" and self.reader is not None else self.llm
        if model is None:
            raise ConfigError("the method asks a language model, and none is given")
        return model

    def _searcher(self, source: str) -> EnvironmentApi:
        if not self.searchers:
            raise ConfigError("the method searches, and no environment is given")
        if not source:
            return next(iter(self.searchers.values()))
        if source not in self.searchers:
            raise ConfigError(
                f"the method searches the knowledge base {source!r}; given are {', '.join(map(repr, self.searchers))}"
            )
        return self.searchers[source]


@dataclass(slots=True)
class _PendingStep:
    """One step that a question waits for."""

    step: Step
    run: "_QuestionRun"
    answer: object = None


class _QuestionRun:
    """One question in progress."""

    def __init__(self, question: Question, steps: Steps) -> None:
        self.question, self.spent = question, QuestionCost()
        self.prompts: dict[str, None] = {}
        """The versions of its prompts, in order."""
        self.requests: list[_PendingStep] = []
        """What it waits for; empty once it has ended."""
        self._steps, self._yielded_list = steps, False
        self._outcome: Outcome | None = None

    def answered(self) -> None:
        """Continue with the answers of all requests."""
        answers = [request.answer for request in self.requests]
        self.advance(answers if self._yielded_list else answers[0])

    def advance(self, answer: object) -> None:
        """Send an answer to the method, and take the steps that it yields next."""
        self.requests = []
        try:
            while not self.requests:  # an empty list is answered at once
                yielded = self._steps.send(answer)
                self._yielded_list = isinstance(yielded, Sequence)
                steps = yielded if isinstance(yielded, Sequence) else [yielded]
                self.requests = [_PendingStep(step, self) for step in steps]
                answer = []
        except StopIteration as stop:
            self._outcome = stop.value

    def spend(self, replies: Sequence[LlmResponse]) -> None:
        """Add the costs of the replies."""
        self.spent.calls += sum(len(reply.texts) for reply in replies)
        for reply in replies:
            self.spent.cut += sum(not (text.finished or text.first) for text in reply.texts)
            self.spent.prompt_tokens = complete_sum([self.spent.prompt_tokens, reply.prompt_tokens])
            self.spent.tokens = complete_sum([self.spent.tokens, reply.tokens])

    def ended(self) -> Outcome:
        """The outcome."""
        assert self._outcome is not None, "a method returns an Outcome"
        return self._outcome


def _refuse_exclusions(questions: Sequence[Question]) -> None:
    """Raise ConfigError for a question that excludes documents: a knowledge base is searched without knowing whose
    question it is, so its rankings would hold them."""
    excluding = next((question for question in questions if question.excluded), None)
    if excluding is not None:
        raise ConfigError(
            f"the question {excluding.id!r} excludes documents ({excluding.excluded[0]!r} among them), which the "
            "searches of a method cannot leave out. Compare systems on these questions with an evaluation spec "
            "(querylect eval), or take excluded_ids out of a copy of the questions."
        )


def _groups(
    requests: Sequence[_PendingStep], kind: type[Kind], key: Callable[[Kind], Key]
) -> Iterable[tuple[Key, list[tuple[_PendingStep, Kind]]]]:
    """The requests whose step is of `kind`, grouped by `key`, in the order of the questions."""
    groups: dict[Key, list[tuple[_PendingStep, Kind]]] = {}
    for request in requests:
        if isinstance(request.step, kind):
            groups.setdefault(key(request.step), []).append((request, request.step))
    return list(groups.items())
