"""Any rewriter over any language model as it stands: an endpoint, or a local model that is not trained."""

from collections.abc import Sequence

from ..data.types import Question
from ..llms.access import Llm
from ..llms.base import Draw, Prompt, Reply
from .base import Rewrite, Rewriter
from .passages import PassageRewriter


def ask_rewriter(llm: Llm, rewriter: Rewriter, questions: Sequence[Question], draw: Draw) -> list[Rewrite | None]:
    """The first turn for each question, in their order; None where the model did not reply.

    An answer in the wrong format is a Rewrite without a plan. With `draw.n` above 1 the passages of all answers become
    one plan (hyde). Raises ValueError for a rewriter that cannot join answers, and as `Llm.ask`.
    """
    if draw.n > 1 and not joins(rewriter):
        raise ValueError(f"n is {draw.n}, and {rewriter.name} makes a plan of one answer; only hyde joins several")
    prompts = [Prompt(tuple(rewriter.first(question))) for question in questions]
    rewrites: list[Rewrite | None] = []
    for question, reply in zip(questions, llm.ask(prompts, draw), strict=True):
        if reply is None:
            rewrites.append(None)
            continue
        rewrites.append(read_reply(rewriter, question, reply))
    return rewrites


def joins(rewriter: Rewriter) -> bool:
    """Whether the rewriter makes one plan of several answers."""
    return isinstance(rewriter, PassageRewriter) and rewriter.most is None


def read_reply(rewriter: Rewriter, question: Question, reply: Reply) -> Rewrite:
    """What a reply to the first turn says; several texts become one rewrite where the rewriter joins them."""
    # A chat cannot begin the model's turn for it: examples show whole answers, and `parse` adds the opening itself.
    read = [rewriter.parse(question, one.text.removeprefix(rewriter.opening), 1) for one in reply.texts]
    return rewriter.join(question, read) if isinstance(rewriter, PassageRewriter) else read[0]
