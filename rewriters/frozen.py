"""Run any rewriter with a language model that is not trained: an endpoint, or a local model.

An answer that cannot be read is sent back once, with what is wrong with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..configs.schema import RolloutConfig
from ..data.types import Document, Question
from ..llms.access import Llm
from ..llms.base import LlmResponse, Message, Prompt, SamplingParams, complete_sum
from ..llms.prose import without_thinking
from .base import Rewrite, RewritingStrategy


@dataclass(frozen=True, slots=True)
class FrozenAnswer:
    """The model's answer to one chat."""

    rewrite: Rewrite
    text: str
    """As sampled; several passages are joined."""
    prompt_tokens: int | None
    """Tokens read; None if an endpoint does not report them. `tokens` counts those written."""
    tokens: int | None
    calls: int
    """Texts that were sampled: of several passages each, and of an answer that was sent back both."""
    finished: bool = True
    """False if a text was cut at its token limit."""


def ask_rewriter(
    llm: Llm, rewriter: RewritingStrategy, questions: Sequence[Question], draw: SamplingParams
) -> list[Rewrite | None]:
    """The first turn for each question, in their order; None if the model did not reply.

    An answer in the wrong format is a Rewrite without a plan. With `draw.n` above 1 the passages of all answers become
    one plan (hyde). Raises ValueError for a rewriter that cannot join answers, and as `Llm.ask`.
    """
    answers = ask_turn(llm, rewriter, questions, [rewriter.first(question) for question in questions], 1, draw)
    return [answer.rewrite if answer is not None else None for answer in answers]


def ask_turn(
    llm: Llm,
    rewriter: RewritingStrategy,
    questions: Sequence[Question],
    chats: Sequence[Sequence[Message]],
    turn: int,
    draw: SamplingParams,
    missing: Callable[[int, str], None] | None = None,
) -> list[FrozenAnswer | None]:
    """The answer to each chat, which is turn `turn` (1, 2, …) of the question at the same index.

    None if the model did not reply; `missing` is called with the index and the reason. Raises as `ask_rewriter`.
    """
    if draw.n > 1 and not rewriter.joins:
        raise ValueError(f"n is {draw.n}, and {rewriter.name} makes a plan of one answer; only hyde joins several")
    prompts = [Prompt(tuple(chat)) for chat in chats]
    replies = llm.ask(prompts, draw, missing=missing)
    answers = [
        _answer(rewriter, question, reply, turn) if reply is not None else None
        for question, reply in zip(questions, replies, strict=True)
    ]
    failed = [(index, answer) for index, answer in enumerate(answers) if answer and answer.rewrite.failure]
    repairs = [Prompt((*chats[index], *repair(answer.text, answer.rewrite.failure))) for index, answer in failed]
    for (index, first), reply in zip(failed, llm.ask(repairs, draw) if repairs else [], strict=True):
        if reply is not None:
            second = _answer(rewriter, questions[index], reply, turn)
            answers[index] = replace(
                second,
                prompt_tokens=complete_sum([first.prompt_tokens, second.prompt_tokens]),
                tokens=complete_sum([first.tokens, second.tokens]),
                calls=first.calls + second.calls,
            )
    return answers


def _answer(rewriter: RewritingStrategy, question: Question, reply: LlmResponse, turn: int) -> FrozenAnswer:
    text = "\n\n".join(sample.text for sample in reply.texts)
    finished = all(sample.finished for sample in reply.texts)
    rewrite, calls = read_reply(rewriter, question, reply, turn), len(reply.texts)
    return FrozenAnswer(rewrite, text, reply.prompt_tokens, reply.tokens, calls, finished)


def repair(text: str, failure: str) -> tuple[Message, ...]:
    """The messages that send an answer back for the failure of its reading."""
    answer = without_thinking(text) or "(no answer)"
    request = f"Your answer could not be read: {failure}. Give it again, in exactly the form that was asked for."
    return Message(role="assistant", content=answer), Message(role="user", content=request)


def read_reply(rewriter: RewritingStrategy, question: Question, reply: LlmResponse, turn: int = 1) -> Rewrite:
    """Read a reply of that turn; several texts become one rewrite if the rewriter joins them."""
    rewrites = [rewriter.read(question, sample.text, turn) for sample in reply.texts]
    return rewriter.join(question, rewrites) if rewriter.joins else rewrites[0]


def cut_to_words(documents: Sequence[Document], rollout: RolloutConfig) -> list[Document]:
    """The documents as shown to a model whose tokenizer is not there: each, and all together, cut to their budgets of
    tokens (`rollout.document_tokens`, `rollout.observation_tokens`) in words."""
    left = rollout.observation_tokens
    truncated = []
    for document in documents:
        budget = rollout.document_tokens if left is None else min(left, rollout.document_tokens)
        if budget <= 0:
            break
        title = document.title.split()[:budget]
        text = document.text.split()[: budget - len(title)]
        truncated.append(Document(document.id, " ".join(title), " ".join(text)))
        left = None if left is None else left - len(title) - len(text)
    return truncated
