"""Asks the writer for questions (`generate`) and the judge for verdicts (`judge`).

The reply cache resumes an interrupted command. A request without a reply is *missing*: the next call asks for it
again. A reply that has the wrong form twice is a *failure*; a question whose verdict failed counts neither as
answerable nor as unanswerable.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from pydantic import BaseModel

from ..configs.schema import QuestionsConfig
from ..data.sampling import in_batches
from ..errors import IncompleteError
from ..llms.access import Llm
from ..llms.base import LlmResponse, SamplingParams, complete_sum
from ..llms.structured import Form, FormPrompt, Structured, ask_structured
from ..logs import Progress
from ..rollouts.llms import open_llm
from .prompts import Answerability, prompt

_BATCH = 32
"""Prompts that are asked at once; progress is told after each batch."""


class QuestionModels:
    """A writer and a judge."""

    def __init__(self, config: QuestionsConfig, writer: Llm, judge: Llm, progress: Progress | None) -> None:
        self._config, self._writer, self._judge, self._progress = config, writer, judge, progress
        self._replies: list[LlmResponse] = []

    @property
    def identity(self) -> dict[str, object]:
        """Both models as plain data, for results that name them."""
        return {"writer": self._writer.identity, "judge": self._judge.identity}

    def generate(self, prompts: Sequence[FormPrompt], form: type[Form]) -> list[Structured[Form]]:
        """The writer's answers, in the order of the prompts. Raises as `Llm.ask`."""
        return self._ask(self._writer, prompts, form, self._config.max_tokens)

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[Structured[Answerability]]:
        """The verdict on each pair of a question and a text. Raises as `Llm.ask`."""
        prompts = [prompt("judge", Answerability, question=question, text=text) for question, text in pairs]
        return self._ask(self._judge, prompts, Answerability, self._config.judge_tokens)

    def costs(self) -> dict[str, int | None]:
        """Calls and tokens of all replies, those of the cache included; None where an endpoint reports no tokens."""
        return {
            "calls": len(self._replies),
            "prompt_tokens": complete_sum([reply.prompt_tokens for reply in self._replies]),
            "tokens": complete_sum([reply.tokens for reply in self._replies]),
        }

    def _ask(
        self, llm: Llm, prompts: Sequence[FormPrompt], form: type[Form], max_tokens: int
    ) -> list[Structured[Form]]:
        distinct = list({(prompt.task, prompt.case): prompt for prompt in prompts}.values())
        answers: dict[tuple[str, str], Structured[Form]] = {}
        for batch in in_batches(distinct, _BATCH):
            replies = ask_structured(llm, batch, form, SamplingParams(max_tokens=max_tokens))
            for request, answer in zip(batch, replies, strict=True):
                answers[request.task, request.case] = answer
                self._replies += answer.replies
            if self._progress is not None:
                self._progress(len(answers), len(distinct))
        return [answers[prompt.task, prompt.case] for prompt in prompts]


@contextmanager
def open_models(config: QuestionsConfig, progress: Progress | None = None) -> Iterator[QuestionModels]:
    """Open writer and judge, which may be the same; a local model is loaded at the first new request."""
    with ExitStack() as stack:
        writer = judge = stack.enter_context(open_llm(config.writer))
        if config.judge is not None and config.judge != config.writer:
            judge = stack.enter_context(open_llm(config.judge))
        yield QuestionModels(config, writer, judge, progress)


def refuse_missing(answers: Sequence[Structured[BaseModel]]) -> None:
    """Raise IncompleteError where a model did not reply."""
    if missing := sum(answer.missing for answer in answers):
        raise IncompleteError(
            f"{missing} of {len(answers)} replies are missing, and nothing was written. Rerun the command; the replies "
            "that came are cached."
        )
