"""Answers in labelled parts: the parser for training, and what the rewriters that ask for them share.

An answer is a sequence of parts, each beginning with its label at the start of a line (`Query 1: …`): every label once
and in order, optional thinking in <think> tags before them, and nothing else. Markup of chat models around a label
(`**Query 1:**`, `- Query 1:`) is skipped; a part may span several lines, without a blank one. Nothing needs escaping,
so a model of some hundred million parameters can learn the form from the reward; its first label is prefilled
(`opening`). `prompted.py` reads the answers of models that are not trained.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..data.types import Document, Question
from ..envs.plan import SearchPlan, is_unicode
from ..llms.base import Message
from ..llms.lines import is_placeholder, label_pattern, split_at_labels
from ..llms.prose import without_end_of_turn
from .base import Rewrite
from .levels import case_text, describe_results
from .parse import Parsed, without_think
from .plans import planned
from .prompted import read_labelled

_BLANK = re.compile(r"\n[ \t]*\n")
NOTHING_FOUND = "Your last answer found no documents: it did not keep to the form, or nothing matched it."


def read_parts(text: str, labels: Sequence[str]) -> Parsed:
    """Parse one answer into its parts, each on one line. Never raises: a format error is returned as a failure."""
    text = without_end_of_turn(text)
    if not is_unicode(text):
        return Parsed(failure="invalid unicode")
    think, answer, failure = without_think(text)
    if failure or not answer:
        return Parsed(think, failure=failure or "empty answer")
    preamble, marks = split_at_labels(answer, labels)
    actual = [label for label, _ in marks]
    if set(actual) != set(labels):
        return Parsed(think, failure="missing part")
    if len(actual) > len(labels):
        return Parsed(think, failure="repeated part")
    if actual != list(labels):
        return Parsed(think, failure="parts out of order")
    if preamble.strip() or any(_BLANK.search(body.strip()) for _, body in marks):
        return Parsed(think, failure="text outside parts")
    texts = tuple(" ".join(body.split()) for _, body in marks)
    empty = any(not text or is_placeholder(text) for text in texts)
    return Parsed(think, failure="empty part") if empty else Parsed(think, texts)


def form_of(labels: Sequence[str], field_hints: Sequence[str]) -> str:
    """The sentence that asks for the form, for the end of a prompt; `field_hints` describes each part."""
    lines = "\n".join(f"{label}: <{description}>" for label, description in zip(labels, field_hints, strict=True))
    return f"Write plain text in exactly this form and nothing else, each part on a line of its own:\n{lines}"


@dataclass(eq=False)
class PartsRewriter:
    """A rewriter whose answers are labelled parts."""

    name: str
    version: str
    """The version of the prompt's wording."""
    labels: tuple[str, ...]
    task: Callable[[Question], str]
    """The prompt without the form; it contains the question."""
    field_hints: tuple[str, ...]
    """A description of each part."""
    plan: Callable[[Question, Sequence[str]], SearchPlan]
    """The plan of a question and the texts of the parts."""
    example: tuple[Question, tuple[str, ...]] | None = None
    """A question and the parts of a good answer."""
    again: str = "Answer once more, and better, in the same form."
    """The instruction of later turns, before the form."""
    options: bool = True
    """Whether later turns show the question's answer options, if any, as `task` does."""
    roles: tuple[str, ...] = ()
    """Regular expressions of what prompted models call each part besides its label."""
    long: bool = False
    """Whether a part may have several paragraphs."""

    @property
    def opening(self) -> str:
        """The first label, which never varies."""
        return f"{self.labels[0]}:"

    def first(self, question: Question) -> list[Message]:
        """One user message, for chat templates without a system role."""
        return [Message(role="user", content=f"{self.task(question)}\n\n{form_of(self.labels, self.field_hints)}")]

    def first_with_example(self, question: Question) -> list[Message]:
        if self.example is None:
            return self.first(question)
        example_question, texts = self.example
        answer = "\n".join(f"{label}: {text}" for label, text in zip(self.labels, texts, strict=True))
        return [*self.first(example_question), Message(role="assistant", content=answer), *self.first(question)]

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The ranked documents, and the same task again."""
        feedback = describe_results(documents) if documents else NOTHING_FOUND
        instruction = f"{self.again}\n{form_of(self.labels, self.field_hints)}"
        return f"{feedback}\n\n{instruction}\n\n{case_text(question, self.options)}"

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """Parse the text sampled in one turn after its opening; the model may repeat the first label."""
        has_opening = label_pattern(self.labels[0]).match(text.lstrip()) or text.lstrip().startswith("<think>")
        parsed = read_parts(text if has_opening else f"{self.opening} {text}", self.labels)
        return planned(question, parsed, self.plan)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        return planned(question, read_labelled(text, self.labels, self.roles, self.long), self.plan)
