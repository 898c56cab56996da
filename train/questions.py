"""The questions of a run: which are trained on, in which order of a mix, and which validate."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..configs.schema import RewardConfig, RunConfig, TrainConfig
from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..envs.plan import SearchPlan
from ..envs.schemas import Step
from ..errors import ConfigError
from ..rewriters.base import RewritingStrategy, Staged
from .answers import without_reader
from .distributed.processes import Processes
from .grading import Grader, grader_of
from .mix import mixed_order

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The environment and the questions of a run."""

    client: EnvironmentApi
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
    from ..rollouts.build import rewriter_for
    from ..rollouts.first_stage import ask_first_stage
    from .validation import validation_questions

    def answered(batch: Sequence[Question]) -> list[Question]:
        words = config.rollout.history_tokens
        return ask_first_stage(rewriter, batch, config.policy, processes.on_main_process, history_words=words)

    train_split = client.questions("train")
    grader = grader_of(config, client)
    questions = processes.on_main_process(lambda: worth_training(config.train, config.reward, grader, train_split))
    rewriter = rewriter_for(config.rewriter, config.mix, client, config.search_depth)
    if config.train.staleness and _has_first_stage(rewriter, questions):
        raise ConfigError(
            f"train.staleness is {config.train.staleness}, and the first stage of rewriter {config.rewriter.name} may "
            "replace a question when it comes up. Set train.staleness=0."
        )
    if config.train.warm_start.questions:
        questions = answered(questions)
    order = _order(config, questions)
    validation = processes.on_main_process(lambda: validation_questions(config.train, client, train_split))
    return TrainingData(client, rewriter, train_split, questions, order, answered(validation))


def _has_first_stage(rewriter: RewritingStrategy, questions: Sequence[Question]) -> bool:
    """Whether a frozen model is asked about any question; a wrapper of a rewriter is `Staged` even if it is not."""
    return isinstance(rewriter, Staged) and any(rewriter.stage(question) is not None for question in questions)


def worth_training(
    settings: TrainConfig, reward: RewardConfig, grader: Grader, questions: Sequence[Question]
) -> list[Question]:
    """The questions whose unrewritten search scores within `train.raw_reward`; all of them if that is [0, 1].

    Raises EnvironmentUnavailableError if a question could not be scored: a guess would change the training set.
    """
    lowest, highest = settings.raw_reward
    if (lowest, highest) == (0.0, 1.0):
        return list(questions)
    metric = settings.raw_metric or reward.raw_signal
    if settings.raw_metric is not None:
        grader = replace(grader, client=without_reader(grader.client), metric=settings.raw_metric)
    steps = [Step(question_id=question.id, plan=SearchPlan.of(question.text)) for question in questions]
    results = grader.grade(steps, "training questions, which train.raw_reward needs,")
    selected = [
        question
        for question, result in zip(questions, results, strict=True)
        if lowest <= result.metrics[metric] <= highest
    ]
    log.info(
        "training on %d of %d questions: raw %s in [%g, %g]", len(selected), len(questions), metric, lowest, highest
    )
    return selected


def _order(config: RunConfig, questions: Sequence[Question]) -> list[str] | None:
    """The order of a run with a mix. Raises ConfigError if there are fewer questions than a step needs."""
    if len(questions) < config.train.questions_per_step:
        raise ConfigError(
            f"{len(questions)} training questions are left after train.raw_reward {config.train.raw_reward}, and "
            f"train.questions_per_step is {config.train.questions_per_step}. Lower it, widen train.raw_reward, "
            "or add questions to the train split."
        )
    if config.mix is None:
        return None
    weights = {name: member.weight for name, member in config.mix.environments.items()}
    ids = [question.id for question in questions]
    return mixed_order(weights, ids, config.train.steps, config.train.questions_per_step, config.seed)
