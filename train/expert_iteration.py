"""Expert iteration, the warm start of a policy with one turn: it imitates its best samples, and samples again.

In every round the policy answers the next training questions of the current pass, as in a rollout. Of each question the
sample with the highest reward is a demonstration if it is well-formed, not truncated, and MARGIN above the mean of the
question's samples. Anthony, Tian and Barber, "Thinking fast and slow with deep learning and tree search", 2017; with
the best of n samples as the expert also known as rejection-sampling fine-tuning.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import count, islice
from random import Random
from statistics import fmean

from torch import nn

from ..configs.schema import RunConfig
from ..data.sampling import in_batches
from ..data.types import Question
from ..rollouts.engines.base import WeightSync
from ..rollouts.random_streams import stream
from ..rollouts.tree import Node, Tree
from ..rollouts.tree_sampler import TreeSampler
from .imitation import Demonstration, Round
from .mix import refuse_outage
from .turns import turns_of

log = logging.getLogger(__name__)

MARGIN = 0.1
ROUNDS = 3


def expert_rounds(
    config: RunConfig,
    policy: nn.Module,
    tree_sampler: TreeSampler,
    weight_sync: WeightSync,
    questions: Sequence[Question],
) -> Iterator[Round]:
    """Yield the rounds of `train.warm_start`, each sampled lazily from the current policy.

    Raises EnvironmentUnavailableError where the environment answers nothing.
    """
    settings, passes = config.train.warm_start, _passes(questions, config.seed)
    for number in range(1, ROUNDS + 1):
        policy.eval()
        weight_sync.refresh()
        trees: list[Tree] = []
        for batch in in_batches(list(islice(passes, settings.questions)), config.train.questions_per_step):
            streams = [stream(config.seed, "expert iteration", epoch, question.id) for epoch, question in batch]
            grown = tree_sampler.grow([question for _, question in batch], config.rollout.branching, streams=streams)
            remedy = "Bring the service back and start again with: querylect train … --resume"
            subject = f"no sample of round {number} of the warm start"
            turns = turns_of(grown, config.reward.turn_weights)
            refuse_outage(turns, tree_sampler.client, config, subject, remedy)
            trees += grown
        weight_sync.sleep()
        best = [sample for tree in trees if (sample := best_sample(tree)) is not None]
        rewards = [root.reward for tree in trees for root in tree.roots if root.reward is not None]
        figures = {"round": number, "imitated_share": round(len(best) / len(trees), 6)}
        figures["reward_mean"] = round(fmean(rewards), 6) if rewards else 0.0
        log.info("expert iteration, round %d of %d: %s", number, ROUNDS, figures)
        yield Round([_demonstration(sample) for sample in best], figures)


def best_sample(tree: Tree) -> Node | None:
    """The sample to imitate; None where none is far enough above the mean."""
    scored = [(node.reward, node) for node in tree.roots if node.reward is not None]
    least = fmean(reward for reward, _ in scored) + MARGIN if scored else 0.0
    good = [(reward, node) for reward, node in scored if reward > least and node.finished and node.rewrite.format_ok]
    return max(good, key=lambda pair: pair[0])[1] if good else None


def _demonstration(node: Node) -> Demonstration:
    start = len(node.prompt_ids)
    return Demonstration([*node.prompt_ids, *node.completion_ids], [(start, start + len(node.completion_ids))])


def _passes(questions: Sequence[Question], seed: int) -> Iterator[tuple[int, Question]]:
    """Endless shuffled passes over the questions: (number of the pass, question)."""
    for number in count():
        draw = Random(f"{seed}/expert iteration/{number}")
        yield from ((number, question) for question in draw.sample(list(questions), len(questions)))
