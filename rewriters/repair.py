"""Reading the replies of prompted models, and sending back an answer that cannot be read."""

from ..data.types import Question
from ..llms.base import LlmResponse, Message
from ..llms.prose import without_thinking
from .base import Rewrite, RewritingStrategy


def read_reply(rewriter: RewritingStrategy, question: Question, reply: LlmResponse, turn: int = 1) -> Rewrite:
    """Read a reply to that turn; several texts become one rewrite if the rewriter joins them."""
    rewrites = [rewriter.read(question, sample.text, turn) for sample in reply.texts]
    return rewriter.join(question, rewrites) if rewriter.joins else rewrites[0]


def repair(text: str, failure: str) -> tuple[Message, ...]:
    """The messages that send an answer back for the failure of its reading."""
    answer = without_thinking(text) or "(no answer)"
    request = f"Your answer could not be read: {failure}. Give it again, in exactly the form that was asked for."
    return Message(role="assistant", content=answer), Message(role="user", content=request)
