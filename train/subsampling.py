"""Train on a subsample of every group: fewer tokens in the update, the same gradient in expectation.

A few members carry most of the signal of a large group: the samples with a high reward, and some of the many with none.
A member is included with probability proportional to the size of its advantage, and its advantage is divided by that
probability, so the expected gradient is that of the full group (Horvitz and Thompson 1952). Selecting the subset of
maximum variance, as in PODS (Xu et al. 2025), saves as much but is biased.
"""

from collections.abc import Sequence
from random import Random

from ..rollouts.tree import Tree
from .credit import Credit, states


def subsample(credit: Credit, trees: Sequence[Tree], limit: int, draw: Random) -> Credit:
    """The credit of at most `limit` turns of each state; the other turns get no signal.

    Systematic sampling: exactly `limit` turns are kept where more than that have a nonzero advantage.
    """
    reweighted: dict[int, float] = {}
    for nodes in states(trees).values():
        advantages = [credit.of(node) for node in nodes]
        chances = inclusion_probabilities([abs(advantage) for advantage in advantages], limit)
        cumulative, threshold = 0.0, draw.random()
        for node, advantage, chance in zip(nodes, advantages, chances, strict=True):
            cumulative += chance
            if cumulative > threshold:
                threshold += 1
                reweighted[id(node)] = advantage / chance
    return Credit(reweighted, credit.groups)


def inclusion_probabilities(sizes: Sequence[float], limit: int) -> list[float]:
    """Probabilities ≤ 1, proportional to sizes ≥ 0, that sum to `limit`; 1 for all sizes > 0 if there are few."""
    if sum(size > 0 for size in sizes) <= limit:
        return [float(size > 0) for size in sizes]
    certain: set[int] = set()
    while True:
        remaining = sum(size for index, size in enumerate(sizes) if index not in certain)
        share = (limit - len(certain)) / remaining
        saturated = {index for index, size in enumerate(sizes) if size * share >= 1 and index not in certain}
        if not saturated:
            return [1.0 if index in certain else size * share for index, size in enumerate(sizes)]
        certain |= saturated
