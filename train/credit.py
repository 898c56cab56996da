"""Credit assignment: from the rewards of a tree to one advantage per sampled turn.

`turn` credit (Yuan et al., eq. 4–5): the value of a turn is compared with those of the other answers to the same state.
The value is λ·reward plus the value of the next state, which is the mean value of the answers sampled there.
A turn that stopped also has the λ of the turns that it leaves out, and the price of a turn's search is subtracted.
`trajectory` credit (the independent baseline): the weighted reward sum of a path is compared with those of all paths of
the question, and a turn gets the mean advantage of the paths through it.

Two turns answer the same state if question and prompt ids are equal, regardless of their parent node or tree: where
three of four first turns have the same text, their second turns form one group. Failed searches (reward None) are
excluded from every baseline and get no advantage; a tie gives exactly 0.

A baseline over n values that includes m values of the turn itself shrinks its advantage by (n − m)/n. This factor
varies: a state that several turns reach has a larger group, and a first turn is part of more paths than a last one.
Therefore advantages are rescaled to the factor of the question's first turns; where all factors are equal, this is
exactly eq. 2–5. `turn` credit with `scale: group` needs no rescaling: every group has standard deviation 1.

An advantage does not depend on the number of leaves below a turn: `batch.py` applies that weight.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from ..rewards.reward import trajectory_value, weight_of_turn
from ..rollouts.tree import Node, Tree

TIE = 1e-9
"""Values that differ by at most this are equal."""

Scale = Literal["group", "batch", "none"]

State = tuple[str, bytes]
"""Question id and digest of the prompt ids."""


@dataclass(frozen=True, slots=True)
class Group:
    """Alternatives that are compared with each other. `values` has None where a search failed."""

    turn: int
    members: Sequence[Node]
    values: Sequence[float | None]

    @property
    def scored(self) -> list[float]:
        """The values without those of failed searches."""
        return [value for value in self.values if value is not None]

    @property
    def has_signal(self) -> bool:
        """Whether at least two alternatives were scored and they differ."""
        scored = self.scored
        return len(scored) > 1 and max(scored) - min(scored) > TIE


@dataclass(frozen=True, slots=True)
class Credit:
    """Advantages by node identity, and the groups that they were computed from."""

    advantages: Mapping[int, float]
    """id(node) → advantage. Failed searches and groups without signal (ties, groups of one) have no entry."""
    groups: Sequence[Group]

    def of(self, node: Node) -> float:
        """The advantage of one node."""
        return self.advantages.get(id(node), 0.0)

    def has_signal(self, node: Node) -> bool:
        """Whether the node was scored in a group of differing values; its advantage may still be 0."""
        return id(node) in self.advantages


def assign_credit(
    trees: Sequence[Tree],
    credit: Literal["turn", "trajectory"],
    weights: Sequence[float],
    scale: Scale,
) -> Credit:
    """Advantages of all nodes of a step. `weights` are λ by turn; one-turn trees always use 1.

    `scale`: divide by the standard deviation of the group (`group`), of all values of the turn (`batch`), or by 1.
    """
    groups = _turn_groups(trees, weights) if credit == "turn" else _trajectory_groups(trees, weights)
    spread = _spreads(groups, scale)
    mean_of_all = credit == "turn" and scale != "group"
    strengths = _strengths(groups, trees) if mean_of_all else {}
    advantages: dict[int, float] = {}
    for group in groups:
        if not group.has_signal:
            continue
        divisor, mean = spread(group) / strengths.get(id(group), 1.0), fmean(group.scored)
        for member, value in zip(group.members, group.values, strict=True):
            if value is not None:
                advantages[id(member)] = (value - mean) / divisor if abs(value - mean) > TIE else 0.0
    if credit == "trajectory":
        advantages = _mean_over_paths(trees, advantages, groups)
    return Credit(advantages, groups)


def states(trees: Iterable[Tree]) -> dict[State, list[Node]]:
    """The nodes of each state, in the order in which the trees are walked."""
    by_state: dict[State, list[Node]] = {}
    for tree in trees:
        for node in tree.walk():
            by_state.setdefault(_state(tree, node), []).append(node)
    return by_state


def _state(tree: Tree, node: Node) -> State:
    return tree.question.id, node.state


def _lambdas(tree: Tree, weights: Sequence[float]) -> Sequence[float]:
    """λ by turn."""
    return [1.0] if tree.turns == 1 else weights


def _turn_groups(trees: Sequence[Tree], weights: Sequence[float]) -> list[Group]:
    """One group per state, in the order of the trees."""
    tree_of = {id(node): tree for tree in trees for node in tree.walk()}
    members = states(trees)
    values: dict[State, list[float | None]] = {}

    def value(node: Node) -> float | None:
        """λ·reward − cost + the mean value of the next state; None where either is missing."""
        if node.reward is None:
            return None
        tree = tree_of[id(node)]
        weighted = weight_of_turn(_lambdas(tree, weights), node.turn, node.rewrite.stop) * node.reward - node.cost
        if not node.children:
            return weighted
        child_values = [x for x in values[_state(tree, node.children[0])] if x is not None]
        return weighted + fmean(child_values) if child_values else None

    for state, nodes in sorted(members.items(), key=lambda item: -item[1][0].turn):
        values[state] = [value(node) for node in nodes]
    return [Group(nodes[0].turn, nodes, values[state]) for state, nodes in members.items()]


def _trajectory_groups(trees: Sequence[Tree], weights: Sequence[float]) -> list[Group]:
    """One group per first state: all its paths, by their leaves."""
    paths: dict[State, list[tuple[Node, float | None]]] = {}
    for tree in trees:
        lambdas = _lambdas(tree, weights)
        for path in tree.paths():
            rewards = [node.reward for node in path if node.reward is not None]
            used = [weight_of_turn(lambdas, node.turn, node.rewrite.stop) for node in path]
            costs = [node.cost for node in path]
            value = trajectory_value(rewards, used, costs) if len(rewards) == len(path) else None
            paths.setdefault(_state(tree, path[0]), []).append((path[-1], value))
    return [
        Group(pairs[0][0].turn, [leaf for leaf, _ in pairs], [value for _, value in pairs]) for pairs in paths.values()
    ]


def _mean_over_paths(
    trees: Sequence[Tree], leaf_advantages: Mapping[int, float], groups: Sequence[Group]
) -> dict[int, float]:
    """The mean advantage of the scored paths through each node, rescaled to the shrinkage of the first turns."""
    size = {id(leaf): len(group.scored) for group in groups for leaf in group.members}
    leaves_of: dict[int, list[Node]] = {}
    for tree in trees:
        for path in tree.paths():
            if id(path[-1]) in leaf_advantages:
                for node in path:
                    leaves_of.setdefault(id(node), []).append(path[-1])
    advantages: dict[int, float] = {}
    for tree in trees:
        reference: float | None = None
        for node in tree.walk():
            leaves = leaves_of.get(id(node), [])
            if leaves and (n := size[id(leaves[0])]) > len(leaves):
                strength = 1 - len(leaves) / n
                reference = strength if reference is None else reference
                mean = fmean(leaf_advantages[id(leaf)] for leaf in leaves)
                advantages[id(node)] = mean * reference / strength
    return advantages


def _strengths(groups: Sequence[Group], trees: Sequence[Tree]) -> dict[int, float]:
    """Factor of a group's advantages by id(group): n/(n − 1), divided by that of the question's first group."""
    question_of = {id(node): tree.question.id for tree in trees for node in tree.walk()}
    reference: dict[str, float] = {}
    strengths = {}
    for group in groups:
        if (n := len(group.scored)) > 1:
            strengths[id(group)] = n / (n - 1) / reference.setdefault(question_of[id(group.members[0])], n / (n - 1))
    return strengths


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
