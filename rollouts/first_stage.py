"""The first stage of rewriters that have two: a frozen model is asked about a question before its first rollout.

A question whose answer is missing, or is not of the form that was asked for even after one repair, falls out and is
counted: nothing is made up for it. Other rewriters pass all their questions on.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack

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

    `base` as in StageModels; `once`, `history_words` and `spent` as in `learn_first_stage`. `lost` is called with every
    question that falls out, and why. Raises ConfigError where no question is left, and as `Llm.ask`.
    """
    with StageModels(base) as models:
        failures = learn_first_stage(rewriter, questions, models, once, history_words, spent)
    for question, reason in zip(questions, failures, strict=True):
        if reason:
            lost(question, reason)
    remaining = [question for question, reason in zip(questions, failures, strict=True) if not reason]
    if questions and not remaining:
        raise no_question_left(failures)
    if len(remaining) < len(questions):
        log.warning("%s", _summary(failures))
    return remaining


def learn_first_stage(
    rewriter: RewritingStrategy,
    questions: Sequence[Question],
    models: "StageModels",
    once: Callable[[Callable[[], Answers]], Answers] = lambda ask: ask(),
    history_words: int | None = None,
    spent: Callable[[Question, Sequence[LlmResponse]], None] = lambda question, replies: None,
) -> list[str]:
    """For each question "", after `rewriter` has learned what its first stage says, or why it has no answer.

    Several processes pass a `once` that asks in one of them and gives the answers to all. A prompt shows at most the
    newest `history_words` of a history. `spent` is called with the replies of every question, in the process that asks.
    """
    failures = [""] * len(questions)
    if not isinstance(rewriter, Staged):
        return failures
    shortened = [question if history_words is None else cut_history(question, history_words) for question in questions]
    stages = {i: stage for i, question in enumerate(shortened) if (stage := rewriter.stage(question)) is not None}

    def ask() -> Answers:
        return models.ask(
            list(stages.values()), lambda number, replies: spent(questions[list(stages)[number]], replies)
        )

    for index, answer in zip(stages, once(ask) if stages else (), strict=True):
        if isinstance(answer, str):
            failures[index] = answer
        else:
            rewriter.learn(questions[index], answer)
    return failures


def _summary(failures: Sequence[str]) -> str:
    """How many questions fall out, and why."""
    reasons = Counter(filter(None, failures))
    summary = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{reasons.total()} of {len(failures)} questions fall out; their first stage gave: {summary}"


def no_question_left(failures: Sequence[str]) -> ConfigError:
    """The error where the first stage of no question has an answer."""
    return ConfigError(
        f"{_summary(failures)}. Let it answer in lines (rewriter.form=lines), ask a stronger model (rewriter.llm), "
        "or use another rewriter."
    )


def policy_llm(policy: PolicyConfig) -> LlmConfig:
    """The policy's base model as a frozen one."""
    return LlmConfig(model=policy.model, dtype=policy.dtype)


class StageModels(ExitStack):
    """The frozen models of first stages, each opened when it is first asked and kept until the end of the context."""

    def __init__(self, base: PolicyConfig | LlmConfig) -> None:
        """`base` is asked where a stage names no model; of a policy it is the model as it was before any training."""
        super().__init__()
        self._base = policy_llm(base) if isinstance(base, PolicyConfig) else base
        self._models: dict[str, Llm] = {}

    def ask(
        self,
        stages: Sequence[FirstStage],
        spent: Callable[[int, Sequence[LlmResponse]], None] = lambda number, replies: None,
    ) -> Answers:
        """The answer of each stage, or the reason why there is none; `spent` is called with the replies of each."""
        groups: dict[tuple[str, type[BaseModel], SamplingParams, AnswerForm], list[int]] = {}
        for index, stage in enumerate(stages):
            model = (stage.llm or self._base).model_dump_json()
            groups.setdefault((model, stage.ask.form, stage.ask.draw, stage.form), []).append(index)
        answers: dict[int, BaseModel | str] = {}
        for (model, form, draw, answer_form), indices in groups.items():
            if model not in self._models:
                self._models[model] = self.enter_context(open_llm(stages[indices[0]].llm or self._base))
            prompts = [stages[index].ask.prompt for index in indices]
            outcomes = ask_structured(self._models[model], prompts, form, draw, answer_form)
            for index, outcome in zip(indices, outcomes, strict=True):
                spent(index, outcome.replies)
                answers[index] = outcome.value or (MISSING if outcome.missing else GARBLED)
        return [answers[index] for index in range(len(stages))]
