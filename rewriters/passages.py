"""Shared by the rewriters that answer with a passage: the chat, the parser, later turns.

The whole answer is the passage; thinking in <think> tags before it is removed. No format is required, so an answer
fails only without a passage: a model cannot learn the format, only what to write.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..llms.base import Message
from .base import Rewrite
from .case import case_text
from .levels import describe_results
from .parse import parse_plain, read_passage
from .plans import planned

AGAIN = (
    "Write another passage, a better one to search with: take up the names, terms and style of the documents that come "
    "near to an answer, and leave out what led astray. Write the passage and nothing else."
)
NOTHING_FOUND = "Your last passage found no documents. Write another one, and nothing else."


@dataclass(frozen=True)
class PassageRewriter:
    """One way of searching with a written passage."""

    name: str
    task: str
    """What to write."""
    plan: Callable[[Question, Sequence[str]], SearchPlan]
    """The plan of a question and its passages."""
    max_passages: int | None = 1
    """Passages that a plan can hold; None is any number."""
    opening: str = field(default="", init=False)

    def first(self, question: Question) -> list[Message]:
        """One user message: the task and the question."""
        return [Message(role="user", content=f"{self.task}\n\n{case_text(question, options=False)}")]

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The ranked documents and the request for a better passage."""
        feedback = [describe_results(documents), AGAIN] if documents else [NOTHING_FOUND]
        return "\n\n".join([*feedback, case_text(question, options=False)])

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """Parse the text sampled in one turn; it fails without a passage."""
        return planned(question, parse_plain(text), self.plan)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        return planned(question, read_passage(text), self.plan)

    def join(self, question: Question, rewrites: Sequence[Rewrite]) -> Rewrite:
        """Join the passages of several answers to one prompt into one rewrite; failed answers are left out.

        Raises ValueError for more answers than a plan can hold.
        """
        if self.max_passages is not None and len(rewrites) > self.max_passages:
            raise ValueError(f"{self.name} searches with {self.max_passages} passage, and {len(rewrites)} were sampled")
        passages = [passage for rewrite in rewrites for passage in rewrite.rewrites]
        if not passages:
            return rewrites[0]
        return Rewrite(self.plan(question, passages), "", tuple(passages))
