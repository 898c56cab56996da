"""Running a method (rewriters/method.py) over many questions: prompts and plans of one stage travel together.

Every question is advanced until it wants something; then all prompts of the same draw are asked in one batch, all plans
of the same source searched in one, and every question goes on with its own outcome, a list of steps with all of theirs.
A question that ended early waits for nobody. The order of questions changes no outcome.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ..configs.llm import AnswerForm
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..envs.wire import HitBody
from ..errors import ConfigError, EnvironmentUnavailableError
from ..llms.access import Llm
from ..llms.base import Prompt, Reply
from ..llms.structured import ask_structured
from ..rewriters.method import Ask, AskForm, Found, Method, Outcome, Role, Score, Search, Step, Steps

log = logging.getLogger(__name__)

Kind = TypeVar("Kind", Ask, AskForm, Search, Score)


class Searcher(Protocol):
    """A client of an environment (envs/client.py)."""

    def search(self, plans: Sequence[SearchPlan], with_text: bool = True) -> list[list[HitBody]]:
        """A ranking for each plan."""
        ...


class CrossEncoder(Protocol):
    """Scores pairs of a question and a document."""

    def scores(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """One score for each text; higher is better."""
        ...


@dataclass(slots=True)
class Spent:
    """What one question cost."""

    calls: int = 0
    """Prompts that got a reply, known replies included; a repaired form counts as two."""
    prompt_tokens: int | None = 0
    """Tokens read; None where the model does not say for every reply. Those written alike."""
    tokens: int | None = 0
    searches: int = 0


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of one question."""

    question: Question
    outcome: Outcome
    spent: Spent


@dataclass(frozen=True)
class Runner:
    """What methods are run with."""

    llm: Llm | None
    searchers: Mapping[str, Searcher]
    """By source; the first one is also "", which names no source."""
    cross_encoder: CrossEncoder | None = None
    reader: Llm | None = None
    """Writes the answers of methods that answer themselves, and drafts of them; `llm` where None."""
    form: AnswerForm = "json"
    """How answers of a fixed form are written."""
    on_wave: Callable[[int, int], None] = field(default=lambda ended, questions: None)
    """Told after every stage how many of how many questions have ended."""

    def run(self, method: Method, questions: Sequence[Question]) -> list[Ran]:
        """The outcome of `method` for each question, in their order.

        Raises ConfigError where the method wants a source, a model or a cross-encoder that is not there, and as
        `Llm.ask` and the clients' `search`, except for an environment without an answer: that is the method's to say.
        """
        going = [_Going(question, method.steps(question)) for question in questions]
        for one in going:
            one.advance(None)
        while waiting := [one for one in going if one.wanted]:
            wanted = [wish for one in waiting for wish in one.wanted]
            for serve in (self._ask, self._ask_forms, self._search, self._score):
                serve(wanted)
            for one in waiting:
                one.answered()
            self.on_wave(sum(not one.wanted for one in going), len(going))
        return [Ran(one.question, one.ended(), one.spent) for one in going]

    def _ask(self, wanted: Sequence["_Wanted"]) -> None:
        for (model, draw), group in _groups(wanted, Ask, lambda step: (self._model(step.role), step.draw)):
            replies = model.ask([self._prompt(step) for _, step in group], draw)
            for (one, _), reply in zip(group, replies, strict=True):
                one.spend([reply] if reply is not None else [])
                one.answer = reply

    def _ask_forms(self, wanted: Sequence["_Wanted"]) -> None:
        for (model, form, draw, way), group in _groups(
            wanted, AskForm, lambda step: (self._model(step.role), step.form, step.draw, way_of(step, self.form))
        ):
            answers = ask_structured(model, [step.prompt for _, step in group], form, draw, way)
            for (one, _), answer in zip(group, answers, strict=True):
                one.spend(answer.replies)
                one.answer = answer

    def _search(self, wanted: Sequence["_Wanted"]) -> None:
        for source, group in _groups(wanted, Search, lambda step: step.source):
            rankings: Sequence[list[HitBody] | None]
            try:
                rankings = self._searcher(source).search([step.plan for _, step in group], with_text=True)
            except EnvironmentUnavailableError as error:
                log.warning("%s%d plans got no ranking: %s", f"{source}: " if source else "", len(group), error)
                rankings = [None] * len(group)
            for (one, step), ranking in zip(group, rankings, strict=True):
                one.spent.searches += len(step.plan.probes)
                one.answer = None if ranking is None else _found(step.plan, ranking)

    def _score(self, wanted: Sequence["_Wanted"]) -> None:
        for _, group in _groups(wanted, Score, lambda step: None):
            for one, step in group:
                if self.cross_encoder is None:
                    raise ConfigError("the method puts documents in order with a cross-encoder, and none is given")
                one.answer = self.cross_encoder.scores(step.question, [text.contents for text in step.documents])

    def _prompt(self, step: Ask) -> Prompt:
        return step.small if self.form == "lines" and step.small is not None else step.prompt

    def _model(self, role: Role) -> Llm:
        model = self.reader if role == "reader" and self.reader is not None else self.llm
        if model is None:
            raise ConfigError("the method asks a language model, and none is given")
        return model

    def _searcher(self, source: str) -> Searcher:
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
class _Wanted:
    """One step that a question waits for."""

    step: Step
    spent: Spent
    """Of its question."""
    answer: Any = None

    def spend(self, replies: Sequence[Reply]) -> None:
        """Count what was answered."""
        self.spent.calls += len(replies)
        for reply in replies:
            self.spent.prompt_tokens = _plus(self.spent.prompt_tokens, reply.prompt_tokens)
            self.spent.tokens = _plus(self.spent.tokens, reply.tokens)


class _Going:
    """One question on its way."""

    def __init__(self, question: Question, steps: Steps) -> None:
        self.question, self.spent = question, Spent()
        self.wanted: list[_Wanted] = []
        """What it waits for; nothing where it has ended."""
        self._steps, self._listed = steps, False
        self._outcome: Outcome | None = None

    def answered(self) -> None:
        """Go on with the answers that have come."""
        answers = [wish.answer for wish in self.wanted]
        self.advance(answers if self._listed else answers[0])

    def advance(self, answer: Any) -> None:
        """Give the method what it asked for, and take what it wants next."""
        self.wanted = []
        try:
            while not self.wanted:  # an empty list is answered at once
                said = self._steps.send(answer)
                self._listed = isinstance(said, Sequence)
                self.wanted = [_Wanted(step, self.spent) for step in (said if isinstance(said, Sequence) else [said])]
                answer = []
        except StopIteration as stop:
            self._outcome = stop.value

    def ended(self) -> Outcome:
        """The outcome."""
        assert self._outcome is not None, "a method returns an Outcome"
        return self._outcome


def way_of(step: AskForm, form: AnswerForm) -> AnswerForm:
    """How the answer to a step is written where `form` is asked for: a plain Prompt asks for JSON by itself."""
    return "json" if isinstance(step.prompt, Prompt) else form


def _plus(known: int | None, more: int | None) -> int | None:
    return None if known is None or more is None else known + more


def _groups(
    wanted: Sequence[_Wanted], kind: type[Kind], key: Callable[[Kind], Any]
) -> Iterable[tuple[Any, list[tuple[_Wanted, Kind]]]]:
    """The steps of `kind`, by `key`, in the order of the questions."""
    groups: dict[Any, list[tuple[_Wanted, Kind]]] = {}
    for one in wanted:
        if isinstance(one.step, kind):
            groups.setdefault(key(one.step), []).append((one, one.step))
    return list(groups.items())


def _found(plan: SearchPlan, ranking: Sequence[HitBody]) -> Found:
    return Found(plan, tuple(hit.document for hit in ranking), tuple(hit.score for hit in ranking))
