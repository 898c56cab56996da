"""Expert iteration: the policy imitates the best of its own samples, and samples again.

In every round the policy answers the next training questions of the current pass, as in a rollout, and the environment
scores every turn. For each turn of a question the best sample becomes a demonstration if it is well-formed, not
truncated, and its value exceeds a baseline by more than `train.warm_start.margin`. The baseline is the mean value of
the samples for the same prompt, or the reward of the unrewritten question.

The value of a last turn is its reward. The value of an earlier turn is the mean of its reward and its children's
values, weighted by `reward.turn_weights`, so it stays on the scale of a reward. Anthony, Tian and Barber, "Thinking
fast and slow with deep learning and tree search", 2017; with the best of n samples as the expert also known as
rejection-sampling fine-tuning.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from statistics import fmean

from torch import nn

from ..configs.mix import deadlines
from ..configs.schema import RewardConfig, RunConfig, TrainConfig
from ..configs.training import WarmStartConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..envs.schemas import Step
from ..logs import progress_bar
from ..rewards.reward import node_reward
from ..rollouts.engines.base import Weights
from ..rollouts.grow import Grower
from ..rollouts.random_streams import stream
from ..rollouts.tree import Node, Tree
from .best_of_k import TIE
from .grading import Grader, grader_of
from .imitation import Demonstration, Round
from .mix import refuse_outage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Valued:
    """One sample with its value and the baseline of its prompt."""

    node: Node
    value: float
    baseline: float


def expert_rounds(
    config: RunConfig, policy: nn.Module, grower: Grower, sampler: Weights, questions: Sequence[Question]
) -> Iterator[Round]:
    """Yield the rounds of `train.warm_start`, each sampled lazily from the current policy.

    Raises EnvironmentUnavailableError where the environment answers nothing.
    """
    settings = config.train.warm_start
    passes, grader = _passes(questions, config.seed), grader_of(config, grower.client)
    for number in range(1, settings.rounds + 1):
        policy.eval()
        sampler.refresh()
        drawn = [next(passes) for _ in range(settings.questions)]
        trees = _sample(config.train, config.seed, grower, drawn, number, deadlines(config))
        sampler.sleep()
        raw = _raw_rewards(config.reward, grader, trees) if settings.baseline == "question" else [None] * len(trees)
        best = [
            best_samples(tree, config.reward.turn_weights, settings.margin, reward)
            for tree, reward in zip(trees, raw, strict=True)
        ]
        selected = [samples for samples in best if samples]
        rewards = [[root.reward for root in tree.roots if root.reward is not None] for tree in trees]
        figures = {
            "round": number,
            "imitated_share": round(len(selected) / len(trees), 6),
            "reward_mean": _mean([reward for tree_rewards in rewards for reward in tree_rewards]),
            "reward_best": _mean([max(tree_rewards) for tree_rewards in rewards if tree_rewards]),
        }
        log.info(
            "expert iteration, round %d of %d: first turns earn %.3f in the mean and %.3f at best; %d of %d questions "
            "have a sample to imitate",
            *(number, settings.rounds, figures["reward_mean"], figures["reward_best"], len(selected), len(trees)),
        )
        yield Round([[_demonstration(sample.node) for sample in samples] for samples in selected], figures)


def _mean(values: Sequence[float]) -> float:
    return round(fmean(values), 6) if values else 0.0


def best_samples(tree: Tree, weights: Sequence[float], margin: float, raw: float | None = None) -> list[Valued]:
    """The best sample of each turn that beats its baseline by more than `margin`, first turn to last; turns without one
    are omitted.

    `raw` is the reward of the unrewritten question (`baseline: question`); None uses the mean of the scored samples of
    the same prompt.
    """
    by_prompt: dict[tuple[int, ...], list[tuple[Node, float]]] = {}
    for node in tree.walk():
        value = sample_value(node, weights)
        if value is not None:
            by_prompt.setdefault(tuple(node.prompt_ids), []).append((node, value))
    candidates: dict[int, list[Valued]] = {}
    for group in by_prompt.values():
        baseline = fmean(value for _, value in group) if raw is None else raw
        for node, value in group:
            if node.finished and node.rewrite.format_ok and value - baseline > max(margin, TIE):
                candidates.setdefault(node.turn, []).append(Valued(node, value, baseline))
    return [max(candidates[turn], key=lambda sample: (sample.value, -sample.baseline)) for turn in sorted(candidates)]


def sample_value(node: Node, weights: Sequence[float]) -> float | None:
    """The value of a sampled turn, later turns included; None if it, or every child, is unscorable.

    `weights` are λ of all T turns; with v the mean value of the children, (λ_t·r + (λ_{t+1} + … + λ_T)·v) /
    (λ_t + … + λ_T). A turn that stopped keeps its ranking for all turns after it, so its value is its reward.
    """
    if node.reward is None or not node.children:
        return node.reward
    child_values = [value for child in node.children if (value := sample_value(child, weights)) is not None]
    if not child_values:
        return None
    weight, later_weight = weights[node.turn - 1], sum(weights[node.turn :])
    return (weight * node.reward + later_weight * fmean(child_values)) / ((weight + later_weight) or 1.0)


def _demonstration(node: Node) -> Demonstration:
    """The prompt and completion of a sample, in the token ids that were sampled."""
    start = len(node.prompt_ids)
    return Demonstration([*node.prompt_ids, *node.completion_ids], [(start, start + len(node.completion_ids))])


def _passes(questions: Sequence[Question], seed: int) -> Iterator[tuple[int, Question]]:
    """Endless shuffled passes over the questions: (number of the pass, question)."""
    for number in count():
        draw = Random(f"{seed}/expert iteration/{number}")
        yield from ((number, question) for question in draw.sample(list(questions), len(questions)))


def _sample(
    settings: TrainConfig,
    seed: int,
    grower: Grower,
    questions: Sequence[tuple[int, Question]],
    number: int,
    limits: Mapping[str, float],
) -> list[Tree]:
    """One tree per question of round `number`, sampled in batches of `train.questions_per_step`.

    Random streams are keyed by seed, pass and question, so samples do not depend on the other questions of a batch.
    """
    configured, size = grower.rollout.branching, settings.questions_per_step
    branching = [first_samples(settings.warm_start, configured), *configured[1:]]
    trees: list[Tree] = []
    with progress_bar(f"expert iteration: samples of round {number}") as advance:
        for start in range(0, len(questions), size):
            advance(start, len(questions))
            batch = questions[start : start + size]
            streams = [stream(seed, "expert iteration", epoch, question.id) for epoch, question in batch]
            grown = grower.grow([question for _, question in batch], branching, streams=streams)
            remedy = "Bring the service back and start again with: querylect train … --resume"
            subject = f"no sample of round {number} of the warm start"
            refuse_outage(grown, grower.client, limits, grower.reward, subject, remedy)
            trees += grown
        advance(len(questions), len(questions))
    return trees


def first_samples(settings: WarmStartConfig, branching: Sequence[int]) -> int:
    """Number of first turns sampled per question."""
    return settings.samples or branching[0]


def _raw_rewards(reward: RewardConfig, grader: Grader, trees: Sequence[Tree]) -> list[float | None]:
    """The reward of each unrewritten question, counted as well-formed."""
    steps = [Step(question_id=tree.question.id, plan=SearchPlan.of(tree.question.text)) for tree in trees]
    results = grader.grade(steps, "questions of the warm start")
    return [node_reward(result.metrics[reward.signal], True, reward.format_weight) for result in results]
