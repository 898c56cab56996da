"""Who earned what: from the rewards of a tree to one advantage per sampled turn.

`turn` credit (Yuan et al., eq. 4–5): a turn is compared, by its value, with the other answers to the same state. The
value of a turn is λ·reward plus the value of the state it leads to, the mean value of the answers sampled there.
`trajectory` credit (the independent baseline): the weighted sum of a whole path is compared with all paths of the
question, and a turn has the mean advantage of the paths through it.

Two turns answer the same state where question and prompt ids are equal, whichever node or tree they hang under: where
three of four first turns are the same text, their second turns are compared with each other. Unscorable turns (reward
None) are left out of every baseline and get no advantage; a tie gives exactly 0.

A mean over n values, m of which are a turn's own, shrinks its advantage by (n − m)/n. That share differs: states which
several turns reached have larger groups, and a first turn shares in more paths than a last one. So advantages are
brought to the share that the question's first turns have; where all shares are equal these are eq. 2–5 to the letter.
With `scale: group` and `turn` credit there is nothing to bring: every group has the deviation 1.

An advantage says nothing of how many leaves a turn stands for: `rows.py` gives it that weight.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from ..rewards.trajectory import trajectory_value
from ..rollouts.tree import Node, Tree
from .best_of_k import TIE, best_of_k_advantages

Scale = Literal["group", "batch", "none"]

State = tuple[str, bytes]
"""What a policy answers: question id and digest of the prompt ids."""


@dataclass(frozen=True, slots=True)
class Group:
    """Alternatives that are compared with each other. `values` has None where unscorable."""

    turn: int
    members: Sequence[Node]
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

    def has_signal(self, node: Node) -> bool:
        """Whether a node was compared with others that did better or worse; its own advantage may still be 0."""
        return id(node) in self.advantages


def assign_credit(
    trees: Sequence[Tree],
    credit: Literal["turn", "trajectory"],
    weights: Sequence[float],
    scale: Scale,
    best_of: int | None = None,
) -> Credit:
    """Advantages of all nodes of a step. `weights` λ by turn; one-turn trees use 1 whatever `weights` says.

    `scale`: divide by the sample standard deviation of the group, of all values of the same turn in the batch, or not.
    `best_of`: under `turn` credit, compare for the expected best of so many samples (best_of_k.py), not for their mean.
    """
    groups = _turn_groups(trees, weights) if credit == "turn" else _trajectory_groups(trees, weights)
    spread = _spreads(groups, scale)
    mean_of_all = credit == "turn" and scale != "group" and best_of is None
    strengths = _strengths(groups, trees) if mean_of_all else {}
    advantages: dict[int, float] = {}
    for group in groups:
        if not group.has_signal:
            continue
        divisor, mean = spread(group) / strengths.get(id(group), 1.0), fmean(group.scored)
        if best_of is None:
            ahead = [None if value is None else value - mean for value in group.values]
        else:
            ahead = best_of_k_advantages(group.values, best_of)
        for member, value in zip(group.members, ahead, strict=True):
            if value is not None:
                advantages[id(member)] = value / divisor if abs(value) > TIE else 0.0
    if credit == "trajectory":
        advantages = _mean_over_paths(trees, advantages, groups)
    return Credit(advantages, groups)


def states(trees: Iterable[Tree]) -> dict[State, list[Node]]:
    """The nodes of each state, in the order in which the trees are walked."""
    found: dict[State, list[Node]] = {}
    for tree in trees:
        for node in tree.walk():
            found.setdefault(_state(tree, node), []).append(node)
    return found


def _state(tree: Tree, node: Node) -> State:
    return tree.question.id, node.state


def _lambdas(tree: Tree, weights: Sequence[float]) -> Sequence[float]:
    depth = max((node.turn for node in tree.walk()), default=1)
    return [1.0] if depth == 1 else weights


def _turn_groups(trees: Sequence[Tree], weights: Sequence[float]) -> list[Group]:
    """One group per state: first turns first, as the trees have them."""
    tree_of = {id(node): tree for tree in trees for node in tree.walk()}
    members = states(trees)
    values: dict[State, list[float | None]] = {}

    def value(node: Node) -> float | None:
        """λ·reward + the mean value of the state that it leads to; None where either is unscorable."""
        if node.reward is None:
            return None
        tree = tree_of[id(node)]
        own = _lambdas(tree, weights)[node.turn - 1] * node.reward
        if not node.children:
            return own
        later = [each for each in values[_state(tree, node.children[0])] if each is not None]
        return own + fmean(later) if later else None

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
            value = trajectory_value(rewards, lambdas) if len(rewards) == len(path) else None
            paths.setdefault(_state(tree, path[0]), []).append((path[-1], value))
    return [
        Group(found[0][0].turn, [leaf for leaf, _ in found], [value for _, value in found]) for found in paths.values()
    ]


def _mean_over_paths(
    trees: Sequence[Tree], leaf_advantages: Mapping[int, float], groups: Sequence[Group]
) -> dict[int, float]:
    """Give every node the mean advantage of the scored paths through it, at the strength of the first turns."""
    size = {id(leaf): len(group.scored) for group in groups for leaf in group.members}
    through: dict[int, list[Node]] = {}
    for tree in trees:
        for path in tree.paths():
            if id(path[-1]) in leaf_advantages:
                for node in path:
                    through.setdefault(id(node), []).append(path[-1])
    advantages: dict[int, float] = {}
    for tree in trees:
        reference: float | None = None
        for node in tree.walk():
            leaves = through.get(id(node), [])
            if leaves and (n := size[id(leaves[0])]) > len(leaves):
                shrunk = 1 - len(leaves) / n
                reference = shrunk if reference is None else reference
                mean = fmean(leaf_advantages[id(leaf)] for leaf in leaves)
                advantages[id(node)] = mean * reference / shrunk
    return advantages


def _strengths(groups: Sequence[Group], trees: Sequence[Tree]) -> dict[int, float]:
    """By id(group), what its advantages are multiplied by: n/(n − 1), over that of the question's first such group."""
    question = {id(node): tree.question.id for tree in trees for node in tree.walk()}
    first: dict[str, float] = {}
    strengths = {}
    for group in groups:
        if (n := len(group.scored)) > 1:
            strengths[id(group)] = n / (n - 1) / first.setdefault(question[id(group.members[0])], n / (n - 1))
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
