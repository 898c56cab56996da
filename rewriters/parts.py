"""Answers in labelled parts, and what the rewriters share that ask for them.

An answer is one part after another, each begun by its label at the start of a line (`Query 1: …`), all of them once and
in order, thinking in <think> tags before them, and nothing else. Marks that chat models put around a label (`**Query
1:**`, `- Query 1:`) are passed over; a part may run over several lines. Nothing needs escaping, so a model of some
hundred million parameters can learn the form from the reward; its first label is written for it (`opening`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..data.types import Document, Question
from ..envs.plan import SearchPlan, is_unicode
from ..llms.lines import is_placeholder, label_pattern, split_at_labels
from .base import Message, Rewrite
from .levels import found, question_text
from .parse import without_end_of_turn, without_think

NOTHING_FOUND = "Your last answer found no documents: it did not keep to the form, or nothing matched it."


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an answer, each on one line. `texts` is empty exactly when it failed."""

    texts: tuple[str, ...] = ()
    think: str = ""
    failure: str = ""


def read_parts(text: str, labels: Sequence[str]) -> Parts:
    """Read one answer. Never raises: what does not keep to the form comes back as a failure."""
    text = without_end_of_turn(text)
    if not is_unicode(text):
        return Parts(failure="invalid unicode")
    think, rest, failure = without_think(text)
    if failure or not rest:
        return Parts(think=think, failure=failure or "empty answer")
    before, marks = split_at_labels(rest, labels)
    seen = [label for label, _ in marks]
    if set(seen) != set(labels):
        return Parts(think=think, failure="missing part")
    if len(seen) > len(labels):
        return Parts(think=think, failure="repeated part")
    if seen != list(labels):
        return Parts(think=think, failure="parts out of order")
    if before.strip():
        return Parts(think=think, failure="text outside parts")
    texts = tuple(" ".join(body.split()) for _, body in marks)
    empty = any(not text or is_placeholder(text) for text in texts)
    return Parts(think=think, failure="empty part") if empty else Parts(texts, think)


def form_of(labels: Sequence[str], gist: Sequence[str]) -> str:
    """The sentence that asks for the form, for the end of a prompt; `gist` says what each part holds."""
    lines = "\n".join(f"{label}: <{what}>" for label, what in zip(labels, gist, strict=True))
    return f"Write plain text in exactly this form and nothing else, each part on a line of its own:\n{lines}"


@dataclass(frozen=True)
class PartsRewriter:
    """A rewriter whose answers are labelled parts."""

    name: str
    version: str
    """Of the prompt's wording."""
    labels: tuple[str, ...]
    task: Callable[[Question], str]
    """What is asked, without the form; it holds the question."""
    gist: tuple[str, ...]
    """What each part holds."""
    plan: Callable[[Question, Sequence[str]], SearchPlan]
    """The plan of a question and the texts of the parts."""
    example: tuple[Question, tuple[str, ...]] | None = None
    """A question and the parts of a good answer."""

    @property
    def opening(self) -> str:
        """The first label: it never varies."""
        return f"{self.labels[0]}:"

    def first(self, question: Question) -> list[Message]:
        """One user message, for chat templates without a system role."""
        return [Message(role="user", content=f"{self.task(question)}\n\n{form_of(self.labels, self.gist)}")]

    def first_with_example(self, question: Question) -> list[Message]:
        """`first`, after the example and its answer."""
        if self.example is None:
            return self.first(question)
        asked, texts = self.example
        said = "\n".join(f"{label}: {text}" for label, text in zip(self.labels, texts, strict=True))
        return [*self.first(asked), Message(role="assistant", content=said), *self.first(question)]

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The ranked documents, and the same task again."""
        seen = found(documents) if documents else NOTHING_FOUND
        again = f"Answer once more, and better, in the same form.\n{form_of(self.labels, self.gist)}"
        return f"{seen}\n\n{again}\n\nQuestion: {question_text(question)}"

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """Read the text sampled in one turn after its opening; a model that writes the first label again may."""
        begun = label_pattern(self.labels[0]).match(text.lstrip()) or text.lstrip().startswith("<think>")
        parts = read_parts(text if begun else f"{self.opening} {text}", self.labels)
        plan = None if parts.failure else self.plan(question, parts.texts)
        return Rewrite(plan, parts.think, parts.texts, parts.failure)
