"""Rewriters around others: one that offers to stop, and one for the questions of several environments.

Stopping is an answer `<stop/>` instead of a rewrite, for every rewriter (`rewriter.stop`). A stop keeps the ranking
that the turns before found and searches nothing. Where they found none, as in turn 1, it searches the question as it
stands, or, with `rewriter.stop: answer`, nothing: the question is then answered without documents. In all cases there
is no further turn.

An answer is a stop if it is `<stop/>` or `<rewrite><stop/></rewrite>`, after an optional think part and with the
rewriter's opening in front where it has one. The second form is what a few-shot example with the rewrite `<stop/>`
teaches. Anything else is read by the rewriter itself.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..data.types import Document, Question, split_id
from ..envs.plan import SearchPlan
from ..errors import ConfigError
from ..llms.base import Message
from ..llms.prose import without_end_of_turn
from .base import FirstStage, Rewrite, RewritingStrategy
from .forms import REWRITE_CLOSE, REWRITE_OPEN, split_think

STOP = "<stop/>"
FIRST = f"If the question is already the best query, answer {STOP} instead: it is then searched as it stands."
FIRST_UNSEARCHED = (
    f"If the question can be answered from general knowledge, answer {STOP} instead: nothing is then searched, and the "
    "question is answered from knowledge alone."
)
LATER = f"If these results are good enough, answer {STOP} instead: they are then kept and nothing more is searched."

_ANSWERS = (STOP, f"{REWRITE_OPEN}{STOP}{REWRITE_CLOSE}")


def read_stop(text: str) -> str | None:
    """The think part of an answer that stops; None if it does not stop."""
    think, body, closed = split_think(without_end_of_turn(text))
    return think if closed and "".join(body.split()) in _ANSWERS else None


class DelegatingRewriter(RewritingStrategy):
    """Leaves each question to a rewriter of its own."""

    @abstractmethod
    def member(self, question: Question) -> RewritingStrategy:
        """The rewriter of a question."""

    def first_stage(self, question: Question) -> FirstStage | None:
        return self.member(question).first_stage(question)

    def first(self, question: Question) -> list[Message]:
        return self.member(question).first(question)

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        return self.member(question).follow_up(question, documents, turn)

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        return self.member(question).parse(question, text, turn)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        return self.member(question).read(question, text, turn)


@dataclass(frozen=True)
class StoppableRewriter(DelegatingRewriter):
    """A rewriter whose prompts offer to stop, in one sentence at their end, and that reads stops."""

    rewriter: RewritingStrategy
    k: int
    """Documents that the plan of a raw question asks for."""
    unsearched: bool = False
    """Whether a stop before any search searches nothing, not the question (`rewriter.stop: answer`)."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.rewriter.name

    @property
    def opening(self) -> str:
        return self.rewriter.opening

    def member(self, question: Question) -> RewritingStrategy:
        return self.rewriter

    def first(self, question: Question) -> list[Message]:
        *earlier, last = self.rewriter.first(question)
        offer = FIRST_UNSEARCHED if self.unsearched else FIRST
        return [*earlier, Message(role=last["role"], content=f"{last['content']}\n{offer}")]

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        return f"{self.rewriter.follow_up(question, documents, turn)}\n{LATER}"

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        return self._stop(question, text) or self.rewriter.parse(question, text, turn)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        return self._stop(question, text) or self.rewriter.read(question, text, turn)

    def _stop(self, question: Question, text: str) -> Rewrite | None:
        think = read_stop(text)
        think = read_stop(self.opening + text) if think is None else think
        if think is None:
            return None
        return Rewrite(None if self.unsearched else SearchPlan.of(question.text, k=self.k), think, stop=True)


@dataclass(frozen=True)
class MixedRewriter(DelegatingRewriter):
    """The rewriters of several environments by name. Questions have mixed ids (data/types.py).

    Raises ConfigError if their openings differ: an opening cannot depend on the question.
    """

    members: Mapping[str, RewritingStrategy]
    name: str = "mixed"

    def __post_init__(self) -> None:
        openings = {name: member.opening for name, member in self.members.items()}
        if len(set(openings.values())) > 1:
            raise ConfigError(
                f"the prompts of the mixed environments have different openings ({openings}). "
                "Give them the same one, or none."
            )

    @property
    def opening(self) -> str:
        return next(iter(self.members.values())).opening

    def member(self, question: Question) -> RewritingStrategy:
        return self.members[split_id(question.id)[0]]
