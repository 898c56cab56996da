"""The turns of a step as arrays: all that credit and metrics know of the trees.

Trees, with their texts and token ids, stay in the process that grew them. These numbers are gathered from all.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, chain
from math import fsum, nan

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ..data.history import records_of
from ..data.leakage import words
from ..rewards.reward import weight_of_turn
from ..rewriters.case import repeats
from ..rollouts.tree import Node, Tree
from .processes import Processes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Turns:
    """n turns of several trees, tree by tree and depth first."""

    questions: Sequence[str]
    """Id of the question of each tree."""
    depth: int
    """Turns of a path that does not stop."""
    tree: Ints
    """(n,) index of the tree."""
    parent: Ints
    """(n,) row of the turn before; -1 for a first turn."""
    turn: Ints
    """(n,) 1 for a first turn."""
    state: Ints
    """(n,) digest of question and prompt ids: turns of one state are compared, whatever turn they hang under."""
    leaves: Ints
    """(n,) paths through the turn."""
    tokens: Ints
    """(n,) sampled tokens."""
    value: Floats
    """(n,) λ·reward − price of the search; NaN where the search failed."""
    figures: Mapping[str, Floats]
    """(n,) what metrics are made of, by name (`_figures`); NaN where it does not apply."""

    @property
    def scored(self) -> NDArray[np.bool_]:
        """(n,) whether the turn has a reward."""
        return ~np.isnan(self.figure("reward"))

    @property
    def ends(self) -> NDArray[np.bool_]:
        """(n,) whether a path ends with the turn."""
        return ~np.isin(np.arange(len(self.turn)), self.parent)

    def figure(self, name: str) -> Floats:
        """(n,) a figure, NaN without any."""
        return self.figures.get(name, np.full(len(self.turn), nan))

    def along_paths(self, values: Floats) -> Floats:
        """(n,) the sum of values (n,) over the turns of a path, up to each turn."""
        sums = values.copy()
        for row, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                sums[row] += sums[parent]
        return sums


def turns_of(trees: Sequence[Tree], weights: Sequence[float], count: Callable[[str], int] | None = None) -> Turns:
    """The turns of some trees. `weights`: λ by turn; trees of one turn always have 1. `count`: the tokens of a text,
    for the figures of behaviour, which are left out without it."""
    leaves = leaves_below(trees)
    columns: list[tuple[int, ...]] = []
    values: list[float] = []
    figures: list[dict[str, float]] = []
    for number, tree in enumerate(trees):
        lambdas = [1.0] if tree.turns == 1 else weights
        stack = [(root, -1, {words(tree.question.text)}) for root in reversed(tree.roots)]
        while stack:
            node, parent, history = stack.pop()
            figures.append(_figures(node, history, count))
            weight = weight_of_turn(lambdas, node.turn, node.rewrite.stop)
            values.append(nan if node.reward is None else weight * node.reward - node.cost)
            row = (number, parent, node.turn, _state(tree, node), leaves[id(node)], len(node.completion_ids))
            texts = history | {words(rewrite) for rewrite in node.rewrite.rewrites}
            stack += [(child, len(columns), texts) for child in reversed(node.children)]
            columns.append(row)
    ids, depth = [tree.question.id for tree in trees], max((tree.turns for tree in trees), default=1)
    number_of, parent_of, turn, state, leaf_count, tokens = np.array(columns, np.int64).reshape(-1, 6).T
    by_name = {
        name: np.array([row.get(name, nan) for row in figures], np.float64) for name in {*chain.from_iterable(figures)}
    }
    return Turns(
        ids, depth, number_of, parent_of, turn, state, leaf_count, tokens, np.array(values, np.float64), by_name
    )


def leaves_below(trees: Sequence[Tree]) -> Counter[int]:
    """Number of leaves below each node, by id(node). A path that stopped early counts as the leaves that would have
    grown there."""
    return Counter(id(node) for tree in trees for path in tree.paths() for node in path)


def _state(tree: Tree, node: Node) -> int:
    content = tree.question.id.encode() + b"\0" + np.array(node.prompt_ids, np.int64).tobytes()
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True)


def _figures(node: Node, history: set[str], count: Callable[[str], int] | None) -> dict[str, float]:
    """`history`: the words of the question and of the rewrites of the turns before."""
    rewrite, reward = node.rewrite, node.reward
    figures: dict[str, float] = {
        "format": not rewrite.failure,
        "truncated": not node.finished,
        "completion_tokens": len(node.completion_ids),
        "failed_search": reward is None,
        "planned": rewrite.plan is not None,
        "searched": node.searched,
        "stopped": rewrite.stop,
        "cost": node.cost,
    }
    if reward is not None:
        figures |= {"reward": reward, **{f"metric/{name}": value for name, value in node.metrics.items()}}
    if node.hits is not None:
        figures |= {"refused": node.error is not None, "no_hits": node.error is None and not node.hits}
    if node.logprobs:
        figures["surprise"] = -fsum(node.logprobs)
    if count is not None and not rewrite.failure:
        figures["think_tokens"] = count(rewrite.think)
        figures["rewrite_tokens"] = sum(map(count, rewrite.rewrites))
    if count is not None and rewrite.rewrites:
        figures["copy"] = repeats(rewrite.rewrites, history)
    return figures


def gather(turns: Turns, processes: Processes) -> tuple[Turns, slice]:
    """The turns of all processes by rank, and which rows are those of this one. Collective."""
    parts = processes.all_gather(turns)
    rows = [0, *accumulate(len(part.turn) for part in parts)]
    trees = [0, *accumulate(len(part.questions) for part in parts)]
    parents = [np.where(part.parent < 0, -1, part.parent + start) for part, start in zip(parts, rows, strict=False)]
    names, figures = ("turn", "state", "leaves", "tokens", "value"), {name for part in parts for name in part.figures}
    every = Turns(
        questions=[name for part in parts for name in part.questions],
        depth=max(part.depth for part in parts),
        tree=np.concatenate([part.tree + start for part, start in zip(parts, trees, strict=False)]),
        parent=np.concatenate(parents),
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
        figures={name: np.concatenate([part.figure(name) for part in parts]) for name in sorted(figures)},
    )
    return every, slice(rows[processes.rank], rows[processes.rank + 1])


def describe(tree: Tree) -> dict[str, JsonValue]:
    """A tree as plain data: question, samples, rankings and rewards."""

    def plain_node(node: Node) -> dict[str, JsonValue]:
        return {
            "turn": node.turn,
            "text": node.text,
            "rewrites": list(node.rewrite.rewrites),
            "failure": node.rewrite.failure,
            **({"stop": True} if node.rewrite.stop else {}),
            "ranking": [hit.id for hit in node.ranking],
            "metrics": dict(node.metrics),
            "reward": node.reward,
            "children": [plain_node(child) for child in node.children],
        }

    return {
        "question_id": tree.question.id,
        "question": tree.question.text,
        **({"history": [{**entry} for entry in records_of(tree.question.history)]} if tree.question.history else {}),
        "turns": [plain_node(root) for root in tree.roots],
    }
