"""The questions of a run: which are trained on, in which order of a mix, and which validate."""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random
from typing import TypeVar

from ..configs.schema import MixConfig, RunConfig
from ..configs.section import cutoff
from ..data.leakage import described, same_questions
from ..data.sampling import draw, in_batches
from ..data.types import Question, split_id
from ..envs.client.base import EnvironmentApi, StepClient
from ..envs.plan import SearchPlan
from ..envs.schemas import Step, StepResult
from ..errors import ConfigError, DataError, EnvironmentUnavailableError
from ..rewriters.base import RewritingStrategy
from .answers import without_reader
from .processes import Processes

log = logging.getLogger(__name__)

T = TypeVar("T")

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
    order: list[str]
    """The ids of the questions of all steps, one step after another."""
    validation: list[Question]


def prepare_data(
    config: RunConfig, rewriter: RewritingStrategy, processes: Processes, client: EnvironmentApi
) -> TrainingData:
    """Choose the questions. A first stage of the rewriter runs now, for the questions that the run will ask, of which
    those without an answer are dropped.

    Collective. Raises ConfigError, DataError or EnvironmentUnavailableError.
    """
    from ..rollouts.llms import FirstStages, Outcome, answered, policy_llm

    train, mix, on_main = config.train, config.mix, processes.on_main_process
    train_split = client.questions("train")
    questions = on_main(lambda: worth_training(config, client, train_split))

    def ordered() -> list[str]:
        """The ids of the questions of all steps."""
        if len(questions) < train.questions_per_step:
            raise ConfigError(
                f"{len(questions)} training questions are left after train.raw_reward {train.raw_reward}, and "
                f"train.questions_per_step is {train.questions_per_step}. Lower it, widen train.raw_reward, "
                "or add questions to the train split."
            )
        ids = [question.id for question in questions]
        if mix is not None:
            return mixed_order(mix, ids, train.steps, train.questions_per_step, config.seed)
        return shuffled_order(ids, train.steps, train.questions_per_step, config.seed)

    validation, order = list[Question](), ordered()
    if train.validate_steps:
        validation = on_main(lambda: draw_validation(train.validation_questions, client, train_split))
    if any(rewriter.first_stage(question) for question in questions):
        with FirstStages(rewriter, policy_llm(config.policy), config.rollout.history_tokens) as stages:

            def ask(batch: Sequence[Question]) -> list[Outcome]:
                return on_main(lambda: stages.ask(batch))

            validation = answered(ask(validation))
            outcomes, needed = dict[str, Outcome](), set(order)
            everything = train.warm_start.questions > 0
            while new := [q for q in questions if q.id not in outcomes and (everything or q.id in needed)]:
                outcomes |= zip((question.id for question in new), ask(new), strict=True)
                staged = {question.id: question for question in answered(list(outcomes.values()))}
                questions = [staged.get(q.id, q) for q in questions if q.id in staged or q.id not in outcomes]
                order = ordered()
                needed = set(order)
    return TrainingData(rewriter, train_split, questions, order, validation)


def mixed_order(mix: MixConfig, question_ids: Sequence[str], steps: int, size: int, seed: int) -> list[str]:
    """The ids of the questions of all steps, `size` to each: a pure function of its arguments, of which a run with more
    steps has the same beginning.

    An environment's share of a step is weight / sum of weights, rounded up or down so that the mean over steps equals
    it (systematic sampling). Its questions come in shuffled passes, none twice in a step unless it has fewer than its
    share.

    Raises ConfigError if an environment has no question.
    """
    weights = {name: member.weight for name, member in mix.environments.items()}
    ids: dict[str, list[str]] = {name: [] for name in weights}
    for question_id in question_ids:
        ids[split_id(question_id)[0]].append(question_id)
    if empty := [name for name, members in ids.items() if not members]:
        raise ConfigError(
            f"no training question of {', '.join(empty)} is left after train.raw_reward. Widen it, add questions to "
            "the train split, or take the environment out of mix.environments."
        )
    names, edges = list(weights), [edge / sum(weights.values()) for edge in accumulate(weights.values())]
    passes = {name: shuffled_passes(ids[name], f"{seed}/{name}") for name in names}
    order: list[str] = []
    for step in range(1, steps + 1):
        random = Random(f"{seed}/{step}")
        start = random.random()
        picked = [names[min(bisect_right(edges, (start + slot) / size), len(names) - 1)] for slot in range(size)]
        random.shuffle(picked)
        taken: dict[str, set[str]] = {name: set() for name in names}
        for name in picked:
            if len(taken[name]) == len(ids[name]):
                taken[name].clear()
            question_id = next(question_id for _, question_id in passes[name] if question_id not in taken[name])
            taken[name].add(question_id)
            order.append(question_id)
    return order


def shuffled_passes(items: Sequence[T], seed: str) -> Iterator[tuple[int, T]]:
    """Endless shuffled passes over the items: (number of the pass, item)."""
    for number in count():
        yield from ((number, item) for item in Random(f"{seed}/{number}").sample(items, len(items)))


def shuffled_order(ids: Sequence[str], steps: int, size: int, seed: int) -> list[str]:
    """The ids of the questions of all steps, `size` to each, in shuffled passes that leave out those too few for a
    step."""
    import torch

    generator, order = torch.Generator().manual_seed(seed), list[str]()
    usable = len(ids) // size * size
    for _ in range(steps * size // max(1, usable) + 1):
        order += [ids[index] for index in torch.randperm(len(ids), generator=generator).tolist()[:usable]]
    return order


def draw_validation(count: int, client: EnvironmentApi, train: Sequence[Question]) -> list[Question]:
    """A sample of the validation split.

    Raises ConfigError if the environment has no validation split, DataError if it shares questions with `train`.
    """
    splits = client.info().splits
    if not splits.get("validation"):
        raise ConfigError(
            f"the environment has no validation questions (its splits: {splits}). Add the split (BEIR: qrels/dev.tsv); "
            "to train without, set train.validate_steps=0."
        )
    questions = client.questions("validation")
    if overlap := described(client.info().name, same_questions("validation", questions, "train", train)):
        raise DataError(
            f"{overlap[0]} Take these questions out of one of the two; to train without, set train.validate_steps=0."
        )
    return draw(questions, count, seed=0)


def worth_training(config: RunConfig, client: StepClient, questions: Sequence[Question]) -> list[Question]:
    """The questions whose unrewritten search scores within `train.raw_reward`; all of them if that is [0, 1].

    Raises EnvironmentUnavailableError as `grade`.
    """
    raw_metric, (lowest, highest) = config.train.raw_metric, config.train.raw_reward
    if (lowest, highest) == (0.0, 1.0):
        return list(questions)
    if raw_metric is not None:
        client = without_reader(client)
    pairs = [(question.id, question.text) for question in questions]
    label, searched = "training questions, which train.raw_reward needs,", raw_metric or config.reward.metric
    results = grade(client, pairs, searched, config.search_depth, label)
    metric = raw_metric or config.reward.raw_signal
    graded = zip(questions, results, strict=True)
    selected = [question for question, result in graded if lowest <= result.metrics[metric] <= highest]
    log.info(
        "training on %d of %d questions: raw %s in [%g, %g]", len(selected), len(questions), metric, lowest, highest
    )
    return selected


def grade(
    client: StepClient,
    items: Sequence[tuple[str, str]],
    metric: str,
    depth: int,
    label: str,
    with_text: bool | int = False,
) -> list[StepResult]:
    """Score searches outside of a rollout: one result per (id of a question, text to search), with `metric` of a
    ranking that is `depth` deep or as the metric looks. `with_text` as of StepClient.

    Raises EnvironmentUnavailableError if any item got no answer before its deadline: a guess would change the training
    data. `label` names the items in that message.
    """
    k = max(depth, cutoff(metric))
    graded: list[StepResult] = []
    for part in in_batches(items, STEPS_PER_CALL):
        steps = [Step(question_id=name, plan=SearchPlan.of(text, k=k)) for name, text in part]
        results = client.step(steps, with_text=with_text, metrics=[metric])
        graded += all_graded(results, client, label)
    return graded


def all_graded(results: Sequence[StepResult | None], client: StepClient, label: str) -> list[StepResult]:
    """The results, of which none may be missing. Raises EnvironmentUnavailableError."""
    graded = [result for result in results if result is not None]
    if len(graded) < len(results):
        raise EnvironmentUnavailableError(
            f"{len(results) - len(graded)} of {len(results)} {label} could not be graded before client.deadline. Last "
            f"failure: {getattr(client, 'last_failure', None)}. Check the service, or raise client.deadline."
        )
    return graded
