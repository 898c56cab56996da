"""Train on a part of every group: fewer tokens in the update, the same gradient in expectation.

Most of what a large group has to say is said by a few of its members: the one sample that earned more, and some of the
many that earned nothing. A member is kept with a probability in proportion to the size of its advantage, and its
advantage is divided by that probability, so that the expected gradient is that of the whole group (Horvitz and Thompson
1952). Choosing the members of largest variance, as in PODS (Xu et al. 2025), saves as much and is biased.
"""

from collections.abc import Sequence
from random import Random

from ..rollouts.tree import Tree
from .credit import Credit, states


def subsample(credit: Credit, trees: Sequence[Tree], most: int, draw: Random) -> Credit:
    """The credit of at most `most` turns of each state; the others have no signal.

    The draw is systematic: the number kept is `most` exactly where more turns than that have an advantage.
    """
    kept: dict[int, float] = {}
    for nodes in states(trees).values():
        advantages = [credit.of(node) for node in nodes]
        chances = inclusion_probabilities([abs(advantage) for advantage in advantages], most)
        passed, mark = 0.0, draw.random()
        for node, advantage, chance in zip(nodes, advantages, chances, strict=True):
            passed += chance
            if passed > mark:
                mark += 1
                kept[id(node)] = advantage / chance
    return Credit(kept, credit.groups)


def inclusion_probabilities(sizes: Sequence[float], most: int) -> list[float]:
    """Probabilities in proportion to sizes ≥ 0 that sum to `most`; none above 1, and 1 for all where they are few."""
    if sum(size > 0 for size in sizes) <= most:
        return [float(size > 0) for size in sizes]
    certain: set[int] = set()
    while True:
        left = sum(size for place, size in enumerate(sizes) if place not in certain)
        share = (most - len(certain)) / left
        above = {place for place, size in enumerate(sizes) if size * share >= 1 and place not in certain}
        if not above:
            return [1.0 if place in certain else size * share for place, size in enumerate(sizes)]
        certain |= above
