"""The prompts of writer and judge (prompts.yaml), the forms of their answers, and the two models that are asked.

The reply cache resumes an interrupted command. A request without a reply is *missing*: the next call asks for it
again. A reply that has the wrong form twice is a *failure*; a question whose verdict failed counts neither as
answerable nor as unanswerable.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..configs.llm import Style
from ..configs.load import parse_yaml
from ..configs.schema import QuestionsConfig
from ..data.leakage import words
from ..data.sampling import in_batches
from ..data.types import Document
from ..errors import IncompleteError
from ..llms.access import Llm
from ..llms.base import LlmResponse, SamplingParams, complete_sum
from ..llms.structured import Form, FormPrompt, Structured, ask_structured, worked
from ..logs import Progress
from ..rollouts.llms import open_llm
from ..storage import data_sha256

_BATCH = 32
"""Prompts that are asked at once; progress is told after each batch."""
_ONE_QUESTION = 'Answer with one JSON object and nothing else: {"question": "your question"}.'
STYLE_PROMPTS: tuple[Style, ...] = ("question", "keyword", "vague", "multi_hop")


class Written(BaseModel):
    """The writer's questions about a content."""

    model_config = ConfigDict(extra="forbid")

    questions: list[str]


class OneQuestion(BaseModel):
    """The answer of a writer that is asked for a single question."""

    model_config = ConfigDict(extra="forbid")

    question: str


class Answerability(BaseModel):
    """The judge's answer: first the reasons, then what follows from them."""

    model_config = ConfigDict(extra="forbid")

    explanation: str
    answerable: bool


@cache
def _templates() -> dict[str, dict[str, Any]]:
    templates: dict[str, dict[str, Any]] = parse_yaml(Path(__file__).with_name("prompts.yaml").read_text("utf-8"))
    return templates


def prompt(name: str, form: type[BaseModel], **values: object) -> FormPrompt:
    """The prompt of that name in prompts.yaml; `values` replace the $names in it."""
    template = _templates()[name]
    examples = worked(template["examples"], form)
    listing = "\n".join(f"{example.case}\n{example.json}" for example in examples)

    def fill(text: str) -> str:
        return Template(text).substitute(values, examples=listing, one_question=_ONE_QUESTION)

    return FormPrompt(fill(template["task"]), fill(template["case"]), examples, fill(template["request"]))


def versions(names: Sequence[str]) -> dict[str, str]:
    """12 hex digits for the wording of each of these prompts, which results record."""
    return {name: data_sha256(_templates()[name])[:12] for name in names}


def example_questions() -> frozenset[str]:
    """The words of the example questions of all styles, which small models copy."""
    return frozenset(
        words(example["answer"]["question"]) for style in STYLE_PROMPTS for example in _templates()[style]["examples"]
    )


def excerpt(passages: Sequence[Document], limit: int) -> str:
    """Titles and texts of at most `limit` words together, an equal share of each passage."""
    share = max(1, limit // len(passages))
    return "\n\n".join(" ".join(passage.contents.split()[:share]) for passage in passages)


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

    def questions(self, prompts: Sequence[FormPrompt]) -> list[tuple[str, str]]:
        """The question that each prompt got, "" for a reply that is not of its form, and what is wrong with that reply.
        Raises IncompleteError where a reply is missing."""
        answers = _complete(self.generate(prompts, OneQuestion))
        return [(" ".join(a.value.question.split()) if a.value else "", a.failure) for a in answers]

    def verdicts(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Whether each text answers its question; None for a verdict that is not of its form. Raises IncompleteError
        where one is missing."""
        return [verdict.value.answerable if verdict.value else None for verdict in _complete(self.judge(pairs))]

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


def _complete(answers: list[Structured[Form]]) -> list[Structured[Form]]:
    if missing := sum(answer.missing for answer in answers):
        raise IncompleteError(
            f"{missing} of {len(answers)} replies are missing, and nothing was written. Rerun the command; the replies "
            "that came are cached."
        )
    return answers
