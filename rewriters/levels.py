"""Shared by the three prompt levels of Yuan et al. (section 4.3, figure 6): the chat, the output format, later turns.

The levels differ only in how much they tell the model about its retriever: `general` nothing, `explore` what it is,
`direct` what to write for it. The prompts are worded by this project. One user message carries the instructions and the
question, for chat templates without a system role.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..data.types import Document, Question
from ..llms.base import THINK_CLOSE, THINK_OPEN, Message
from .base import Rewrite
from .case import case_text, one_line
from .parse import REWRITE_CLOSE, REWRITE_OPEN, read_tagged, render
from .plans import AnswerReader, planned
from .retriever_info import RetrieverInfo

_KIND_IN_WORDS = {
    "bm25": "lexical BM25",
    "dense": "dense embedding",
    "hybrid": "combined lexical and dense",
    "questions": "question-matching",
    "custom": "custom",
}
NOTHING_FOUND = (
    "Your last answer found no documents: either it did not keep to the required form, or nothing in the collection "
    "matched it. Write another rewrite, in the required form."
)
_EXAMPLE_REWRITE = "what the retriever gets"
ONE_REWRITE = f"Give exactly one {REWRITE_OPEN} part."


@dataclass(frozen=True)
class LevelRewriter:
    """One prompt level, for any number of turns."""

    name: str
    reader: AnswerReader
    instructions: str
    """The task and the advice of this level."""
    again: str
    """The instruction of later turns, after the documents."""
    reason: str
    """What the think part should be about."""
    count: str = ONE_REWRITE
    """How many rewrites an answer should hold."""
    opening: str = field(default="", init=False)

    def first(self, question: Question) -> list[Message]:
        """One user message: instructions, output format, question."""
        parts = [self.instructions, output_format(self.reason, self.count), case_text(question)]
        return [Message(role="user", content="\n\n".join(parts))]

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The ranked documents, numbered from 1, and the request for a better rewrite."""
        feedback = [describe_results(documents), self.again] if documents else [NOTHING_FOUND]
        return "\n\n".join([*feedback, output_format(self.reason, self.count), case_text(question)])

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        return self.reader.read(question, text)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        parsed = read_tagged(text, [_EXAMPLE_REWRITE])
        return planned(question, parsed, self.reader.plan)


def output_format(reason: str, count: str) -> str:
    """The form of an answer, the same in every turn; the levels differ in the topic of the reasoning."""
    form = render("how you arrive at the rewrite", [_EXAMPLE_REWRITE])
    return (
        f"Reason first, between {THINK_OPEN} and {THINK_CLOSE}: {reason}. Then write the query between {REWRITE_OPEN} "
        f"and {REWRITE_CLOSE}: only the query, none of the reasoning. {count} Write nothing outside of these parts:\n"
        f"{form}"
    )


def describe_results(documents: Sequence[Document]) -> str:
    """The documents of the previous turn, best first, one per line, as feedback for the model."""
    lines = "\n".join(f"[{number}] {one_line(document)}" for number, document in enumerate(documents, start=1))
    return (
        f"Your last answer brought up these documents, the best match first:\n{lines}\n\n"
        "They may or may not hold what is asked for. Look at how documents in this collection are written, which names "
        "and terms they use, and which part of the question is still not met."
    )


def introduce(retriever: RetrieverInfo) -> str:
    """The sentence that introduces the retriever."""
    trained = retriever.trained.strip().rstrip(".")
    description = trained or f"{retriever.name}, a {_KIND_IN_WORDS[retriever.kind]} retriever"
    label = description if retriever.name.lower() in description.lower() else f"{retriever.name}, {description}"
    return f"Documents are found by {label}."
