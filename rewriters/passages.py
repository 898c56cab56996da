"""What the rewriters share that answer with a passage: the chat, the reading, later turns.

The whole answer is the passage; thinking in <think> tags before it is taken off. Nothing is asked of its form, so an
answer fails only where there is no passage: a model cannot learn the format, only what to write.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from .base import Message, Rewrite
from .levels import found, question_text
from .parse import parse_plain

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
    """What is to be written."""
    plan: Callable[[Question, Sequence[str]], SearchPlan]
    """The plan of a question and its passages."""
    most: int | None = 1
    """Passages that a plan can hold; None is any number."""
    opening: str = field(default="", init=False)

    def first(self, question: Question) -> list[Message]:
        """One user message: the task and the question."""
        return [Message(role="user", content=f"{self.task}\n\nQuestion: {question_text(question)}")]

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The ranked documents and the request for a better passage."""
        seen = [found(documents), AGAIN] if documents else [NOTHING_FOUND]
        return "\n\n".join([*seen, f"Question: {question_text(question)}"])

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """Read the text sampled in one turn; it fails where it holds no passage."""
        parsed = parse_plain(text)
        plan = None if parsed.failure else self.plan(question, parsed.rewrites)
        return Rewrite(plan, parsed.think, parsed.rewrites, parsed.failure)

    def join(self, question: Question, rewrites: Sequence[Rewrite]) -> Rewrite:
        """One rewrite of the passages of several answers to one prompt; those that failed are left out.

        Raises ValueError for more answers than a plan can hold.
        """
        if self.most is not None and len(rewrites) > self.most:
            raise ValueError(f"{self.name} searches with {self.most} passage, and {len(rewrites)} were sampled")
        passages = [passage for rewrite in rewrites for passage in rewrite.rewrites]
        if not passages:
            return rewrites[0]
        return Rewrite(self.plan(question, passages), "", tuple(passages))
