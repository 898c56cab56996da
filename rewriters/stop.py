"""Stopping: an answer `<stop/>` instead of a rewrite, for every rewriter (`rewriter.stop`).

A stop keeps the ranking that the turns before found and searches nothing. Where they found none, as in turn 1, it
searches the question as it stands, or, with `rewriter.stop: answer`, nothing: the question is then answered without
documents. In all cases there is no further turn.

An answer is a stop if it is `<stop/>` or `<rewrite><stop/></rewrite>`, after an optional think part and with the
rewriter's opening in front where it has one. The second form is what a few-shot example with the rewrite `<stop/>`
teaches. Anything else is read by the rewriter itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import Message
from ..llms.prose import without_end_of_turn
from .base import DelegatingRewriter, Rewrite, RewritingStrategy
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


def keep(rewrite: Rewrite, plan: SearchPlan | None) -> Rewrite:
    """A stop with the plan of the last turn that was searched; unchanged if `plan` is None, for there is no such turn,
    or it is no stop."""
    return replace(rewrite, plan=plan) if rewrite.stop and plan is not None else rewrite


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
        """The rewriter's chat; its last message ends with the offer."""
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
        plan = None if self.unsearched else SearchPlan.of(question.text, k=self.k)
        return Rewrite(plan, think, stop=True)
