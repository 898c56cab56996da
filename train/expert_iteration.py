"""Expert iteration: the policy imitates the best of its own samples, and samples again.

In every round the policy answers training questions that it was not asked in this pass yet, as in a rollout, and the
environment scores every turn. In each turn of a question the best sample becomes a demonstration, where it keeps to the
format, was not cut, and its value exceeds a baseline by more than `train.warm_start.margin`. The baseline is the mean
value of the samples that answered the same prompt, or the reward of the question as it stands.

The value of a sample is its reward; before the last turn it is the mean of its reward and of the values of what
follows it, weighted by `reward.turn_weights`, so it stays on the scale of a reward. Anthony, Tian and Barber, "Thinking
fast and slow with deep learning and tree search", 2017; with the best of n samples as the expert also known as
rejection-sampling fine-tuning.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from statistics import fmean

from torch import nn

from ..configs.schema import RunConfig, WarmStartConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..envs.wire import Step
from ..errors import EnvironmentUnavailableError
from ..logs import progress_bar
from ..rewards.node import node_reward
from ..rollouts.engine import Weights
from ..rollouts.grow import Grower
from ..rollouts.streams import stream
from ..rollouts.tree import Node, Tree
from .best_of_k import TIE
from .grading import grade
from .imitation import Demonstration, Round
from .mix import unanswered

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
    """The rounds of `train.warm_start`; each is sampled, when it is asked for, from the policy as it is then.

    Raises EnvironmentUnavailableError where the environment answers nothing.
    """
    settings = config.train.warm_start
    asked = _passes(questions, config.seed)
    for number in range(1, settings.rounds + 1):
        policy.eval()
        sampler.refresh()
        trees = _sample(config, grower, [next(asked) for _ in range(settings.questions)], number)
        sampler.rest()
        raw = _raw_rewards(config, grower, trees) if settings.baseline == "question" else [None] * len(trees)
        best = [best_samples(tree, config, reward) for tree, reward in zip(trees, raw, strict=True)]
        kept = [samples for samples in best if samples]
        rewards = [[root.reward for root in tree.roots if root.reward is not None] for tree in trees]
        figures = {
            "round": number,
            "imitated_share": round(len(kept) / len(trees), 6),
            "reward_mean": _mean([reward for several in rewards for reward in several]),
            "reward_best": _mean([max(several) for several in rewards if several]),
        }
        log.info(
            "expert iteration, round %d of %d: first turns earn %.3f in the mean and %.3f at best; %d of %d questions "
            "have a sample to imitate",
            *(number, settings.rounds, figures["reward_mean"], figures["reward_best"], len(kept), len(trees)),
        )
        yield Round([[_demonstration(sample.node) for sample in samples] for samples in kept], figures)


def _mean(values: Sequence[float]) -> float:
    return round(fmean(values), 6) if values else 0.0


def best_samples(tree: Tree, config: RunConfig, raw: float | None = None) -> list[Valued]:
    """The best sample of each turn, first to last, that beats its baseline; turns without one are left out.

    `raw` is the reward of the question as it stands, the baseline of `baseline: question`; None takes the mean of the
    scored samples that answered the same prompt.
    """
    by_prompt: dict[tuple[int, ...], list[tuple[Node, float]]] = {}
    for node in tree.walk():
        worth = sample_value(node, config.reward.turn_weights)
        if worth is not None:
            by_prompt.setdefault(tuple(node.prompt_ids), []).append((node, worth))
    better: dict[int, list[Valued]] = {}
    for group in by_prompt.values():
        baseline = fmean(worth for _, worth in group) if raw is None else raw
        for node, worth in group:
            if node.finished and node.rewrite.format_ok and worth - baseline > max(config.train.warm_start.margin, TIE):
                better.setdefault(node.turn, []).append(Valued(node, worth, baseline))
    return [max(better[turn], key=lambda each: (each.value, -each.baseline)) for turn in sorted(better)]


def sample_value(node: Node, weights: Sequence[float]) -> float | None:
    """What a sampled turn is worth, later turns included; None where it or all that follows it is unscorable.

    `weights` are λ by turn; with v the mean value of the children, (λ_t·r + (λ_{t+1} + … + λ_T)·v) / (λ_t + … + λ_T).
    """
    if node.reward is None or not node.children:
        return node.reward
    later = [value for child in node.children if (value := sample_value(child, weights)) is not None]
    if not later:
        return None
    own, rest = weights[node.turn - 1], sum(weights[node.turn : _last_turn(node)])
    return (own * node.reward + rest * fmean(later)) / ((own + rest) or 1.0)


def _last_turn(node: Node) -> int:
    return max(below.turn for below in node.walk())


def _demonstration(node: Node) -> Demonstration:
    """A sample under its own prompt, in the very ids that were sampled."""
    begin = len(node.prompt_ids)
    return Demonstration([*node.prompt_ids, *node.completion_ids], [(begin, begin + len(node.completion_ids))])


def _passes(questions: Sequence[Question], seed: int) -> Iterator[tuple[int, Question]]:
    """Endless shuffled passes over the questions, each with the number of its pass."""
    for number in count():
        draw = Random(f"{seed}/expert iteration/{number}")
        yield from ((number, question) for question in draw.sample(list(questions), len(questions)))


def _sample(config: RunConfig, grower: Grower, asked: Sequence[tuple[int, Question]], number: int) -> list[Tree]:
    """One tree per question, as many questions side by side as in a step of the run.

    A random stream is named by the seed, the pass and the question: no other question changes what is sampled.
    """
    settings = config.train.warm_start
    branching = [first_samples(settings, config.rollout.branching), *config.rollout.branching[1:]]
    trees: list[Tree] = []
    with progress_bar(f"expert iteration: samples of round {number}") as advance:
        for start in range(0, len(asked), config.train.questions_per_step):
            advance(start, len(asked))
            part = asked[start : start + config.train.questions_per_step]
            streams = [stream(config.seed, "expert iteration", passed, question.id) for passed, question in part]
            grown = grower.grow([question for _, question in part], branching, streams=streams)
            _refuse_outage(config, grower, grown, number)
            trees += grown
        advance(len(asked), len(asked))
    return trees


def first_samples(settings: WarmStartConfig, branching: Sequence[int]) -> int:
    """How many first turns are sampled for a question."""
    return settings.samples or branching[0]


def _refuse_outage(config: RunConfig, grower: Grower, trees: Sequence[Tree], number: int) -> None:
    silent = unanswered(config, trees)
    if silent is not None:
        environment, deadline = silent
        raise EnvironmentUnavailableError(
            f"no sample of round {number} of the warm start could be scored: {environment} did not answer before "
            f"client.deadline ({deadline:g} s). Last failure: {getattr(grower.client, 'last_failure', None)}. "
            "Bring the service back and start again with: querylect train … --resume"
        )


def _raw_rewards(config: RunConfig, grower: Grower, trees: Sequence[Tree]) -> list[float | None]:
    """The reward of each question as it stands: searched without a rewrite, its format taken as kept."""
    steps = [Step(question_id=tree.question.id, plan=SearchPlan.of(tree.question.text)) for tree in trees]
    results = grade(config, grower.client, steps, "questions of the warm start")
    metric, weight = config.reward.metric, config.reward.format_weight
    return [node_reward(result.metrics[metric], True, weight) for result in results]
