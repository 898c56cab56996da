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
from ..llms.access import Llm, open_llm
from ..llms.base import Draw
from ..llms.structured import ask_structured
from .base import FirstStage, Rewriter, Staged
from .method import MISSING

log = logging.getLogger(__name__)

GARBLED = "not of the form that was asked for"

Answers = list[BaseModel | str]
"""A value for each question, or why there is none."""


def ask_first_stage(
    rewriter: Rewriter,
    questions: Sequence[Question],
    base: PolicyConfig | LlmConfig,
    once: Callable[[Callable[[], Answers]], Answers] = lambda ask: ask(),
    lost: Callable[[Question, str], None] = lambda question, reason: None,
) -> list[Question]:
    """The questions that can be asked, in their order, after `rewriter` has learned what their first stage says.

    `base` is asked where `rewriter.llm` is None; of a policy it is the model as it was before any training. Several
    processes pass a `once` that asks in one of them and gives the answers to all. `lost` is told of every question that
    falls out, and why. Raises ConfigError where no question is left, and as `Llm.ask`.
    """
    if not isinstance(rewriter, Staged):
        return list(questions)
    stages = {place: stage for place, one in enumerate(questions) if (stage := rewriter.stage(one)) is not None}
    if not stages:
        return list(questions)
    model = policy_llm(base) if isinstance(base, PolicyConfig) else base
    answers = dict(zip(stages, once(lambda: _ask(list(stages.values()), model)), strict=True))
    reasons: Counter[str] = Counter()
    kept: list[Question] = []
    for place, question in enumerate(questions):
        answer = answers.get(place)
        if isinstance(answer, str):
            reasons[answer] += 1
            lost(question, answer)
            continue
        if answer is not None:
            rewriter.learn(question, answer)
        kept.append(question)
    if reasons:
        said = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        message = f"{reasons.total()} of {len(questions)} questions fall out; their first stage gave: {said}"
        if not kept:
            raise ConfigError(
                f"{message}. Let it answer in lines (rewriter.form=lines), ask a stronger model (rewriter.llm), or use "
                "another rewriter."
            )
        log.warning("%s", message)
    return kept


def policy_llm(policy: PolicyConfig) -> LlmConfig:
    """The policy's base model as a frozen one."""
    return LlmConfig(model=policy.model, dtype=policy.dtype)


def _ask(stages: Sequence[FirstStage], base: LlmConfig) -> Answers:
    """Ask every model once, with all that it is asked of one form."""
    models: dict[str, tuple[LlmConfig, list[int]]] = {}
    for place, stage in enumerate(stages):
        config = stage.llm or base
        models.setdefault(config.model_dump_json(), (config, []))[1].append(place)
    answers: dict[int, BaseModel | str] = {}
    for config, places in models.values():
        with open_llm(config) as llm:
            answers |= _ask_one(llm, {place: stages[place] for place in places})
    return [answers[place] for place in range(len(stages))]


def _ask_one(llm: Llm, stages: Mapping[int, FirstStage]) -> dict[int, BaseModel | str]:
    kinds: dict[tuple[type[BaseModel], Draw, AnswerForm], list[int]] = {}
    for place, stage in stages.items():
        kinds.setdefault((stage.ask.form, stage.ask.draw, stage.form), []).append(place)
    answers: dict[int, BaseModel | str] = {}
    for (form, draw, way), places in kinds.items():
        outcomes = ask_structured(llm, [stages[place].ask.prompt for place in places], form, draw, way)
        for place, outcome in zip(places, outcomes, strict=True):
            answers[place] = outcome.value or (MISSING if outcome.missing else GARBLED)
    return answers
