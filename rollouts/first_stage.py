"""The first stage of rewriters that have two: a frozen model is asked about every question before its rollouts begin.

A question whose answer is missing, or is not of the form that was asked for even after one repair, falls out and is
counted: nothing is made up for it. Other rewriters pass all their questions on.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pydantic import BaseModel

from ..configs.llm import AnswerForm, LlmConfig
from ..configs.schema import PolicyConfig
from ..data.types import Question
from ..errors import ConfigError
from ..llms.access import Llm
from ..llms.base import SamplingParams
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
) -> list[Question]:
    """The questions that can be asked, in their order, after `rewriter` has learned what their first stage says.

    `base` is asked where `rewriter.llm` is None; of a policy it is the model as it was before any training. Several
    processes pass a `once` that asks in one of them and gives the answers to all. `lost` is called with every question
    that falls out, and why. Raises ConfigError where no question is left, and as `Llm.ask`.
    """
    if not isinstance(rewriter, Staged):
        return list(questions)
    stages = {i: stage for i, question in enumerate(questions) if (stage := rewriter.stage(question)) is not None}
    if not stages:
        return list(questions)
    model = policy_llm(base) if isinstance(base, PolicyConfig) else base
    answers = dict(zip(stages, once(lambda: _ask_models(list(stages.values()), model)), strict=True))
    reasons: Counter[str] = Counter()
    remaining: list[Question] = []
    for index, question in enumerate(questions):
        answer = answers.get(index)
        if isinstance(answer, str):
            reasons[answer] += 1
            lost(question, answer)
            continue
        if answer is not None:
            rewriter.learn(question, answer)
        remaining.append(question)
    if reasons:
        summary = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        message = f"{reasons.total()} of {len(questions)} questions fall out; their first stage gave: {summary}"
        if not remaining:
            raise ConfigError(
                f"{message}. Let it answer in lines (rewriter.form=lines), ask a stronger model (rewriter.llm), or use "
                "another rewriter.",
                code="failed-first-stage",
            )
        log.warning("%s", message)
    return remaining


def policy_llm(policy: PolicyConfig) -> LlmConfig:
    """The policy's base model as a frozen one."""
    return LlmConfig(model=policy.model, dtype=policy.dtype)


def _ask_models(stages: Sequence[FirstStage], base: LlmConfig) -> Answers:
    models: dict[str, tuple[LlmConfig, list[int]]] = {}
    for index, stage in enumerate(stages):
        config = stage.llm or base
        models.setdefault(config.model_dump_json(), (config, []))[1].append(index)
    answers: dict[int, BaseModel | str] = {}
    for config, indices in models.values():
        with open_llm(config) as llm:
            answers |= _ask_model(llm, {index: stages[index] for index in indices})
    return [answers[index] for index in range(len(stages))]


def _ask_model(llm: Llm, stages: Mapping[int, FirstStage]) -> dict[int, BaseModel | str]:
    groups: dict[tuple[type[BaseModel], SamplingParams, AnswerForm], list[int]] = {}
    for index, stage in stages.items():
        groups.setdefault((stage.ask.form, stage.ask.draw, stage.form), []).append(index)
    answers: dict[int, BaseModel | str] = {}
    for (form, draw, answer_form), indices in groups.items():
        outcomes = ask_structured(llm, [stages[index].ask.prompt for index in indices], form, draw, answer_form)
        for index, outcome in zip(indices, outcomes, strict=True):
            answers[index] = outcome.value or (MISSING if outcome.missing else GARBLED)
    return answers
