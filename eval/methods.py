"""Running a method (rewriters/method.py) over many questions: prompts and plans of one stage travel together.

Every question is advanced until it wants something; then all prompts of the same draw are asked in one batch, all plans
of the same source searched in one, and every question goes on with its own outcome. A question that ended early waits
for nobody. The order of questions changes no outcome.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ..configs.llm import AnswerForm
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..envs.wire import HitBody
from ..errors import ConfigError, EnvironmentUnavailableError
from ..llms.access import Llm
from ..llms.base import Reply
from ..llms.structured import Structured, ask_structured
from ..rewriters.method import Ask, AskForm, Found, Method, Outcome, Score, Search, Steps

Wish = TypeVar("Wish", Ask, AskForm, Search, Score)


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
    prompt_tokens: int = 0
    """Tokens read and written, as far as the model says."""
    tokens: int = 0
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
        while waiting := [one for one in going if one.wish is not None]:
            self._serve(waiting)
            self.on_wave(sum(one.wish is None for one in going), len(going))
        return [Ran(one.question, one.ended(), one.spent) for one in going]

    def _serve(self, waiting: Sequence["_Going"]) -> None:
        answers = [*self._asked(waiting), *self._formed(waiting), *self._searched(waiting), *self._scored(waiting)]
        for one, answer in answers:
            one.advance(answer)

    def _asked(self, waiting: Sequence["_Going"]) -> Iterable[tuple["_Going", Reply | None]]:
        for draw, group in _groups(waiting, Ask, lambda wish: wish.draw):
            lines = self.form == "lines"
            prompts = [wish.small if lines and wish.small is not None else wish.prompt for _, wish in group]
            replies = self._model().ask(prompts, draw)
            for (one, _), reply in zip(group, replies, strict=True):
                one.spend([reply] if reply is not None else [])
                yield one, reply

    def _formed(self, waiting: Sequence["_Going"]) -> Iterable[tuple["_Going", Structured[Any]]]:
        for (form, draw), group in _groups(waiting, AskForm, lambda wish: (wish.form, wish.draw)):
            answers = ask_structured(self._model(), [wish.prompt for _, wish in group], form, draw, self.form)
            for (one, _), answer in zip(group, answers, strict=True):
                one.spend(answer.replies)
                yield one, answer

    def _searched(self, waiting: Sequence["_Going"]) -> Iterable[tuple["_Going", Found | None]]:
        for source, group in _groups(waiting, Search, lambda wish: wish.source):
            rankings: Sequence[list[HitBody] | None]
            try:
                rankings = self._searcher(source).search([wish.plan for _, wish in group], with_text=True)
            except EnvironmentUnavailableError:
                rankings = [None] * len(group)
            for (one, wish), ranking in zip(group, rankings, strict=True):
                one.spent.searches += len(wish.plan.probes)
                yield one, None if ranking is None else _found(wish.plan, ranking)

    def _scored(self, waiting: Sequence["_Going"]) -> Iterable[tuple["_Going", Sequence[float]]]:
        for _, group in _groups(waiting, Score, lambda wish: None):
            for one, wish in group:
                if self.cross_encoder is None:
                    raise ConfigError("the method puts documents in order with a cross-encoder, and none is given")
                yield one, self.cross_encoder.scores(wish.question, [text.contents for text in wish.documents])

    def _model(self) -> Llm:
        if self.llm is None:
            raise ConfigError("the method asks a language model, and none is given")
        return self.llm

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


class _Going:
    """One question on its way."""

    def __init__(self, question: Question, steps: Steps) -> None:
        self.question, self.spent = question, Spent()
        self.wish: Ask | AskForm | Search | Score | None = None
        self._steps = steps
        self._outcome: Outcome | None = None

    def advance(self, answer: Any) -> None:
        """Give the method what it asked for, and take what it wants next."""
        try:
            self.wish = self._steps.send(answer)
        except StopIteration as stop:
            self.wish, self._outcome = None, stop.value

    def ended(self) -> Outcome:
        """The outcome."""
        assert self._outcome is not None, "a method returns an Outcome"
        return self._outcome

    def spend(self, replies: Sequence[Reply]) -> None:
        """Count what was answered."""
        self.spent.calls += len(replies)
        self.spent.prompt_tokens += sum(reply.prompt_tokens or 0 for reply in replies)
        self.spent.tokens += sum(reply.tokens or 0 for reply in replies)


def _groups(
    waiting: Sequence[_Going], kind: type[Wish], key: Callable[[Wish], Any]
) -> Iterable[tuple[Any, list[tuple[_Going, Wish]]]]:
    """Those that want something of `kind`, by `key`, in the order of the questions."""
    groups: dict[Any, list[tuple[_Going, Wish]]] = {}
    for one in waiting:
        if isinstance(one.wish, kind):
            groups.setdefault(key(one.wish), []).append((one, one.wish))
    return list(groups.items())


def _found(plan: SearchPlan, ranking: Sequence[HitBody]) -> Found:
    return Found(plan, tuple(hit.document for hit in ranking), tuple(hit.score for hit in ranking))
