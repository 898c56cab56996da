"""Any rewriter over any language model as it stands: an endpoint, or a local model that is not trained."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..data.types import Question
from ..llms.access import Llm
from ..llms.base import Draw, Message, Prompt, Reply
from .base import Rewrite, Rewriter
from .passages import PassageRewriter


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said to one chat."""

    rewrite: Rewrite
    text: str
    """As it was said; of several passages all of them."""
    prompt_tokens: int | None
    """Tokens read; None where an endpoint does not say. Those written alike."""
    tokens: int | None
    finished: bool = True
    """False where a text was cut at its token limit."""


def ask_rewriter(llm: Llm, rewriter: Rewriter, questions: Sequence[Question], draw: Draw) -> list[Rewrite | None]:
    """The first turn for each question, in their order; None where the model did not reply.

    An answer in the wrong format is a Rewrite without a plan. With `draw.n` above 1 the passages of all answers become
    one plan (hyde). Raises ValueError for a rewriter that cannot join answers, and as `Llm.ask`.
    """
    answers = ask_turn(llm, rewriter, questions, [rewriter.first(question) for question in questions], 1, draw)
    return [answer.rewrite if answer is not None else None for answer in answers]


def ask_turn(
    llm: Llm,
    rewriter: Rewriter,
    questions: Sequence[Question],
    chats: Sequence[Sequence[Message]],
    turn: int,
    draw: Draw,
    missing: Callable[[int, str], None] | None = None,
) -> list[Answer | None]:
    """The answer to each chat, which is that of turn `turn` (1, 2, …) about the question beside it.

    None where the model did not reply; `missing` is told the place and the reason. Raises as `ask_rewriter`.
    """
    if draw.n > 1 and not joins(rewriter):
        raise ValueError(f"n is {draw.n}, and {rewriter.name} makes a plan of one answer; only hyde joins several")
    prompts = [Prompt(tuple(chat)) for chat in chats]
    answers: list[Answer | None] = []
    for question, reply in zip(questions, llm.ask(prompts, draw, missing=missing), strict=True):
        if reply is None:
            answers.append(None)
            continue
        rewrite = read_reply(rewriter, question, reply, turn)
        said = "\n\n".join(one.text for one in reply.texts)
        finished = all(one.finished for one in reply.texts)
        answers.append(Answer(rewrite, said, reply.prompt_tokens, reply.tokens, finished))
    return answers


def joins(rewriter: Rewriter) -> bool:
    """Whether several answers of a rewriter can be searched together."""
    return isinstance(rewriter, PassageRewriter) and rewriter.most is None


def read_reply(rewriter: Rewriter, question: Question, reply: Reply, turn: int = 1) -> Rewrite:
    """What a reply says in that turn; several texts become one rewrite where the rewriter joins them."""
    # A text begins with the opening where that was written for a local model, or where the model wrote it itself as
    # the examples do; `parse` puts it in front again.
    read = [rewriter.parse(question, one.text.removeprefix(rewriter.opening), turn) for one in reply.texts]
    return rewriter.join(question, read) if isinstance(rewriter, PassageRewriter) else read[0]
