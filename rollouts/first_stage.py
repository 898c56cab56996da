"""The first stage of rewriters that have two: a frozen model is asked about a question before its first rollout.

A question whose answer is missing, or is not of the form that was asked for even after one repair, falls out and is
counted: nothing is made up for it. Other rewriters pass all their questions on.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pydantic import BaseModel

from ..configs.llm import AnswerForm, LlmConfig
from ..configs.schema import PolicyConfig
from ..data.history import cut_history
from ..data.types import Question
from ..errors import ConfigError
from ..llms.access import Llm
from ..llms.base import LlmResponse, SamplingParams
from ..llms.structured import ask_structured
from ..methods.method import GARBLED, MISSING
from ..rewriters.base import FirstStage, RewritingStrategy, Staged
from .llms import open_llm

log = logging.getLogger(__name__)


Answers = list[BaseModel | str]
"""For each question a value, or the reason why there is none."""


def ask_first_stage(
    rewriter: RewritingStrategy,
    questions: Sequence[Question],
    base: PolicyConfig | LlmConfig,
    once: Callable[[Callable[[], Answers]], Answers] = lambda ask: ask(),
    lost: Callable[[Question, str], None] = lambda question, reason: None,
    history_words: int | None = None,
    spent: Callable[[Question, Sequence[LlmResponse]], None] = lambda question, replies: None,
) -> list[Question]:
    """The questions that can be asked, in their order, after `rewriter` has learned what their first stage says.

    `base` is asked where `rewriter.llm` is None; of a policy it is the model as it was before any training. Several
    processes pass a `once` that asks in one of them and gives the answers to all. `lost` is called with every question
    that falls out, and why; `spent` with the replies of every question, in the process that asks. It shows at
    most the newest `history_words` of a history. Raises ConfigError where no question is
    left, and as `Llm.ask`.
    """
    with StageModels(base) as models:
        failures = learn_first_stage(rewriter, questions, models, once, history_words, spent)
    remaining = [question for question, reason in zip(questions, failures, strict=True) if not reason]
    for question, reason in zip(questions, failures, strict=True):
        if reason:
            lost(question, reason)
    if len(remaining) < len(questions):
        if not remaining:
            raise no_question_left(failures)
        log.warning("%s", failure_text(failures))
    return remaining


def learn_first_stage(
    rewriter: RewritingStrategy,
    questions: Sequence[Question],
    models: "StageModels",
    once: Callable[[Callable[[], Answers]], Answers] = lambda ask: ask(),
    history_words: int | None = None,
    spent: Callable[[Question, Sequence[LlmResponse]], None] = lambda question, replies: None,
) -> list[str]:
    """For each question "", after `rewriter` has learned what its first stage says, or why it has no answer."""
    if not isinstance(rewriter, Staged):
        return [""] * len(questions)
    shortened = [question if history_words is None else cut_history(question, history_words) for question in questions]
    stages = {i: stage for i, question in enumerate(shortened) if (stage := rewriter.stage(question)) is not None}
    asked = [questions[index] for index in stages]
    failures = [""] * len(questions)

    def ask() -> Answers:
        return models.ask(list(stages.values()), lambda number, replies: spent(asked[number], replies))

    for index, answer in zip(stages, once(ask) if stages else (), strict=True):
        if isinstance(answer, str):
            failures[index] = answer
        else:
            rewriter.learn(questions[index], answer)
    return failures


def failure_text(failures: Sequence[str]) -> str:
    """How many questions fall out, and why."""
    reasons = Counter(filter(None, failures))
    summary = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{reasons.total()} of {len(failures)} questions fall out; their first stage gave: {summary}"


def no_question_left(failures: Sequence[str]) -> ConfigError:
    """The error where the first stage of no question has an answer."""
    return ConfigError(
        f"{failure_text(failures)}. Let it answer in lines (rewriter.form=lines), ask a stronger model (rewriter.llm), "
        "or use another rewriter."
    )


def policy_llm(policy: PolicyConfig) -> LlmConfig:
    """The policy's base model as a frozen one."""
    return LlmConfig(model=policy.model, dtype=policy.dtype)


class StageModels:
    """The frozen models of first stages, each opened when it is first asked and kept until the end of the context."""

    def __init__(self, base: PolicyConfig | LlmConfig) -> None:
        """`base` is asked where a stage names no model; of a policy it is the model as it was before any training."""
        self._base = policy_llm(base) if isinstance(base, PolicyConfig) else base
        self._stack = ExitStack()
        self._models: dict[str, Llm] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def ask(
        self,
        stages: Sequence[FirstStage],
        spent: Callable[[int, Sequence[LlmResponse]], None] = lambda number, replies: None,
    ) -> Answers:
        """The answer of each stage, or the reason why there is none; `spent` is called with the replies of each."""
        by_model: dict[str, tuple[LlmConfig, list[int]]] = {}
        for index, stage in enumerate(stages):
            config = stage.llm or self._base
            by_model.setdefault(config.model_dump_json(), (config, []))[1].append(index)
        answers: dict[int, BaseModel | str] = {}
        for key, (config, indices) in by_model.items():
            if key not in self._models:
                self._models[key] = self._stack.enter_context(open_llm(config))
            answers |= _ask_model(self._models[key], {index: stages[index] for index in indices}, spent)
        return [answers[index] for index in range(len(stages))]


def _ask_model(
    llm: Llm, stages: Mapping[int, FirstStage], spent: Callable[[int, Sequence[LlmResponse]], None]
) -> dict[int, BaseModel | str]:
    groups: dict[tuple[type[BaseModel], SamplingParams, AnswerForm], list[int]] = {}
    for index, stage in stages.items():
        groups.setdefault((stage.ask.form, stage.ask.draw, stage.form), []).append(index)
    answers: dict[int, BaseModel | str] = {}
    for (form, draw, answer_form), indices in groups.items():
        outcomes = ask_structured(llm, [stages[index].ask.prompt for index in indices], form, draw, answer_form)
        for index, outcome in zip(indices, outcomes, strict=True):
            spent(index, outcome.replies)
            answers[index] = outcome.value or (MISSING if outcome.missing else GARBLED)
    return answers
