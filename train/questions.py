"""The questions of a run: which are trained on, in which order of a mix, and which validate."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..configs.schema import RunConfig
from ..configs.section import RewardMetric, cutoff
from ..data.types import Question
from ..envs.client.base import EnvironmentApi, ReadingClient, StepClient
from ..envs.plan import SearchPlan
from ..envs.schemas import Step, StepResult
from ..errors import ConfigError, EnvironmentUnavailableError
from ..rewriters.base import RewritingStrategy
from .answers import without_reader
from .distributed.processes import Processes
from .mix import mixed_order

log = logging.getLogger(__name__)

STEPS_PER_CALL = 512
"""Searches of one call of the client. Each call has `client.deadline` to itself, so that a slow retriever may grade a
whole training split."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The questions of a run."""

    rewriter: RewritingStrategy
    train_split: list[Question]
    questions: list[Question]
    """Those of `train_split` that are trained on."""
    order: list[str] | None
    """The ids of the questions of every step of a run with a mix; None for shuffled passes."""
    validation: list[Question]


def prepare_data(config: RunConfig, processes: Processes, client: EnvironmentApi) -> TrainingData:
    """Choose the questions. A rewriter's first stage runs now for the questions of validation and warm start, of which
    those without an answer are dropped, and for the others when they are drawn (staged.py).

    Collective. Raises ConfigError, DataError or EnvironmentUnavailableError.
    """
    from ..rewriters.first_stage import FirstStages, answered
    from ..rollouts.build import rewriter_for
    from ..rollouts.llms import policy_llm
    from .validation import draw_validation

    def staged(batch: Sequence[Question]) -> list[Question]:
        with FirstStages(rewriter, policy_llm(config.policy), config.rollout.history_tokens) as stages:
            return answered(processes.on_main_process(lambda: stages.ask(batch)))

    train = config.train
    train_split = client.questions("train")
    questions = processes.on_main_process(lambda: worth_training(config, client, train_split))
    rewriter = rewriter_for(config.rewriter, config.mix, client, config.search_depth)
    if train.staleness and any(rewriter.first_stage(question) for question in questions):
        raise ConfigError(
            f"train.staleness is {train.staleness}, and the first stage of rewriter {config.rewriter.name} may "
            "replace a question when it comes up. Set train.staleness=0."
        )
    if train.warm_start.questions:
        questions = staged(questions)
    if len(questions) < train.questions_per_step:
        raise ConfigError(
            f"{len(questions)} training questions are left after train.raw_reward {train.raw_reward}, and "
            f"train.questions_per_step is {train.questions_per_step}. Lower it, widen train.raw_reward, "
            "or add questions to the train split."
        )
    order = None
    if config.mix is not None:
        weights = {name: member.weight for name, member in config.mix.environments.items()}
        ids = [question.id for question in questions]
        order = mixed_order(weights, ids, train.steps, train.questions_per_step, config.seed)
    validation = []
    if train.validate_steps:
        validation = staged(processes.on_main_process(lambda: draw_validation(train, client, train_split)))
    return TrainingData(rewriter, train_split, questions, order, validation)


def worth_training(config: RunConfig, client: StepClient, questions: Sequence[Question]) -> list[Question]:
    """The questions whose unrewritten search scores within `train.raw_reward`; all of them if that is [0, 1].

    Raises EnvironmentUnavailableError as `grade`.
    """
    settings = config.train
    lowest, highest = settings.raw_reward
    if (lowest, highest) == (0.0, 1.0):
        return list(questions)
    if settings.raw_metric is not None:
        client = without_reader(client)
    steps = [Step(question_id=question.id, plan=SearchPlan.of(question.text)) for question in questions]
    results = grade(
        config, client, steps, "training questions, which train.raw_reward needs,", metric=settings.raw_metric
    )
    metric = settings.raw_metric or config.reward.raw_signal
    selected = [
        question
        for question, result in zip(questions, results, strict=True)
        if lowest <= result.metrics[metric] <= highest
    ]
    log.info(
        "training on %d of %d questions: raw %s in [%g, %g]", len(selected), len(questions), metric, lowest, highest
    )
    return selected


def grade(
    config: RunConfig,
    client: StepClient,
    items: Sequence[Step] | Sequence[str],
    label: str,
    with_text: bool = False,
    metric: RewardMetric | None = None,
) -> list[StepResult]:
    """Score searches outside of a rollout: one result per step, with `metric` (None: `reward.metric`) of a ranking that
    is as deep as in a rollout and as the metric looks. `with_text` adds the texts of documents. A question id in place
    of a step is answered without documents by the reader of `reward.kind: answer`.

    Raises EnvironmentUnavailableError if any item got no answer before its deadline: a guess would change the training
    data. `label` names the items in that message.
    """
    metric = metric or config.reward.metric
    depth = max(config.search_depth, cutoff(metric))
    answered: list[StepResult] = []
    for start in range(0, len(items), STEPS_PER_CALL):
        part = items[start : start + STEPS_PER_CALL]
        ids = [item for item in part if isinstance(item, str)]
        steps = [
            step.model_copy(update={"plan": step.plan.model_copy(update={"k": max(step.plan.k, depth)})})
            for step in part
            if isinstance(step, Step)
        ]
        results = (
            client.step_and_read(steps, ids, metrics=[metric])
            if ids and isinstance(client, ReadingClient)
            else client.step(steps, with_text=with_text, metrics=[metric])
        )
        answered += [result for result in results if result is not None]
        if len(answered) < start + len(part):
            raise EnvironmentUnavailableError(
                f"{start + len(part) - len(answered)} of {len(part)} {label} could not be graded before "
                f"client.deadline ({config.client.deadline:g} s), after {start} that were. Last failure: "
                f"{getattr(client, 'last_failure', None)}. Check the service, or raise client.deadline."
            )
    return answered
