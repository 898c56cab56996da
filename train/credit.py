"""Who earned what: from the rewards of a tree to one advantage per sampled turn.

`turn` credit (seed 003, eq. 4–5): a last turn is compared with its siblings, an earlier turn by its value, its own
reward plus the mean value of what follows it. `trajectory` credit (the independent baseline): the weighted sum of a
whole path is compared with all paths of the question. A turn that several paths share is trained once, with the mean of
their advantages. Unscorable turns (reward None) are left out of every baseline and get no advantage; a tie gives 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from ..rewards.trajectory import trajectory_value
from ..rollouts.tree import Node, Tree

TIE = 1e-9
"""Differences below this are rounding, not signal."""

Scale = Literal["group", "batch", "none"]


@dataclass(frozen=True, slots=True)
class Group:
    """Alternatives that are compared with each other. `values` has None where unscorable."""

    turn: int
    members: Sequence[object]
    values: Sequence[float | None]

    @property
    def scored(self) -> list[float]:
        """The values without the unscorable ones."""
        return [value for value in self.values if value is not None]

    @property
    def has_signal(self) -> bool:
        """Whether at least two alternatives were scored and they differ."""
        scored = self.scored
        return len(scored) > 1 and max(scored) - min(scored) > TIE


@dataclass(frozen=True, slots=True)
class Credit:
    """Advantages by node identity, and the groups that they came from."""

    advantages: Mapping[int, float]
    """id(node) → advantage. Unscorable turns and groups without signal (ties, groups of one) have no entry."""
    groups: Sequence[Group]

    def of(self, node: Node) -> float:
        """The advantage of one node."""
        return self.advantages.get(id(node), 0.0)

    def teaches(self, node: Node) -> bool:
        """Whether a node was compared with others that did better or worse; its own advantage may still be 0."""
        return id(node) in self.advantages


def assign_credit(
    trees: Sequence[Tree], credit: Literal["turn", "trajectory"], weights: Sequence[float], scale: Scale
) -> Credit:
    """Advantages of all nodes of a step. `weights` λ by turn; one-turn trees use 1 whatever `weights` says.

    `scale`: divide by the sample standard deviation of the group, of all values of the same turn in the batch, or not.
    """
    groups = [group for tree in trees for group in _GROUPS[credit](tree, weights)]
    spread = _spreads(groups, scale)
    advantages: dict[int, float] = {}
    for group in groups:
        if not group.has_signal:
            continue
        divisor, mean = spread(group), fmean(group.scored)
        for member, value in zip(group.members, group.values, strict=True):
            if value is not None:
                ahead = value - mean
                advantages[id(member)] = ahead / divisor if abs(ahead) > TIE else 0.0
    if credit == "trajectory":
        advantages = _shared_by_paths(trees, advantages)
    return Credit(advantages, groups)


def _weights(tree: Tree, weights: Sequence[float]) -> Sequence[float]:
    depth = max((node.turn for node in tree.walk()), default=1)
    return [1.0] if depth == 1 else weights


def _turn_groups(tree: Tree, weights: Sequence[float]) -> Iterator[Group]:
    weights = _weights(tree, weights)

    def value(node: Node) -> float | None:
        """λ·reward + mean value of the children; None where the node or all its children are unscorable."""
        if node.reward is None:
            return None
        own = weights[node.turn - 1] * node.reward
        if not node.children:
            return own
        later = [v for v in map(value, node.children) if v is not None]
        return own + fmean(later) if later else None

    def below(siblings: Sequence[Node]) -> Iterator[Group]:
        if siblings:
            leaves = not any(node.children for node in siblings)
            values = [node.reward if leaves else value(node) for node in siblings]
            yield Group(siblings[0].turn, siblings, values)
        for node in siblings:
            yield from below(node.children)

    yield from below(tree.roots)


def _trajectory_groups(tree: Tree, weights: Sequence[float]) -> Iterator[Group]:
    weights = _weights(tree, weights)
    leaves, values = [], []
    for path in tree.paths():
        rewards = [node.reward for node in path if node.reward is not None]
        leaves.append(path[-1])
        values.append(trajectory_value(rewards, weights) if len(rewards) == len(path) else None)
    yield Group(len(weights), leaves, values)


_GROUPS: Mapping[str, Callable[[Tree, Sequence[float]], Iterator[Group]]] = {
    "turn": _turn_groups,
    "trajectory": _trajectory_groups,
}


def _shared_by_paths(trees: Sequence[Tree], leaf_advantages: Mapping[int, float]) -> dict[int, float]:
    """Give every node of a path the mean advantage of the scored paths through it."""
    through: dict[int, list[float]] = {}
    for tree in trees:
        for path in tree.paths():
            if id(path[-1]) in leaf_advantages:
                for node in path:
                    through.setdefault(id(node), []).append(leaf_advantages[id(path[-1])])
    return {node: fmean(values) for node, values in through.items()}


def _spreads(groups: Sequence[Group], scale: Scale) -> Callable[[Group], float]:
    """The divisor of each group; 1 where nothing is scaled."""
    if scale == "none":
        return lambda _: 1.0
    if scale == "group":
        return lambda group: stdev(group.scored) if group.has_signal else 1.0
    by_turn: dict[int, list[float]] = {}
    for group in groups:
        by_turn.setdefault(group.turn, []).extend(group.scored)
    spread = {turn: stdev(values) if len(values) > 1 else 0.0 for turn, values in by_turn.items()}
    return lambda group: spread[group.turn] if spread.get(group.turn, 0.0) > TIE else 1.0
