"""What a training step is described by: one flat record per step, per turn where that makes a difference."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from ..data.leakage import words
from ..rewriters.repeats import repeats
from ..rollouts.chat import Chat
from ..rollouts.tree import Node, Tree
from .credit import Credit, states


def step_metrics(trees: Sequence[Tree], credit: Credit, chat: Chat) -> dict[str, float]:
    """Means over the nodes of each turn; unscorable turns are counted and left out of the means.

    `zero_variance` is a share of states (groups), `signal` of turns; `states` counts the distinct ones per question.
    """
    by_turn: dict[int, list[Node]] = {}
    nodes_said: dict[int, list[tuple[Node, set[str]]]] = {}
    for tree in trees:
        for node, said in _with_what_was_said(tree):
            by_turn.setdefault(node.turn, []).append(node)
            nodes_said.setdefault(node.turn, []).append((node, said))
    by_state = states(trees)
    record: dict[str, float] = {}
    for turn, nodes in sorted(by_turn.items()):
        scored = [node for node in nodes if node.reward is not None]
        groups = [group for group in credit.groups if group.turn == turn]

        def put(name: str, values: list[float], turn: int = turn) -> None:
            if values:
                record[f"{name}/turn{turn}"] = fmean(values)

        put("reward", [node.reward for node in scored if node.reward is not None])
        for metric in sorted({name for node in scored for name in node.metrics}):
            put(metric.split("@")[0], [node.metrics.get(metric, 0.0) for node in scored])
        put("format", [float(node.rewrite.format_ok) for node in nodes])
        put("truncated", [float(not node.finished) for node in nodes])
        put("think_tokens", [float(chat.count(node.rewrite.think)) for node in nodes if node.rewrite.format_ok])
        put("rewrite_tokens", [_tokens(chat.count, node) for node in nodes if node.rewrite.format_ok])
        put("completion_tokens", [float(len(node.completion_ids)) for node in nodes])
        put("zero_variance", [float(not group.has_signal) for group in groups])
        put("signal", [float(credit.has_signal(node)) for node in nodes])
        record[f"states/turn{turn}"] = sum(members[0].turn == turn for members in by_state.values()) / len(trees)
        put("best_of_group", [max(group.scored) for group in groups if group.scored])
        put("unscorable", [float(node.reward is None) for node in nodes])
        put("entropy", [-logprob for node in nodes for logprob in node.logprobs])
        put("copy", [float(copies(node, said)) for node, said in nodes_said[turn] if node.rewrite.rewrites])
        record[f"advantage_spread/turn{turn}"] = pstdev([credit.of(node) for node in nodes])
    return record


def _tokens(count: Callable[[str], int], node: Node) -> float:
    return float(sum(count(rewrite) for rewrite in node.rewrite.rewrites))


def copies(node: Node, said: set[str]) -> bool:
    """Whether every rewrite of a turn has the words of the question or of an earlier turn, case and punctuation aside.

    `said` are those, as `words` gives them.
    """
    return repeats(node.rewrite.rewrites, said)


def _with_what_was_said(tree: Tree) -> Iterator[tuple[Node, set[str]]]:
    """Every node, depth first, with the question and the rewrites of the turns above it."""

    def below(node: Node, said: set[str]) -> Iterator[tuple[Node, set[str]]]:
        yield node, said
        for child in node.children:
            yield from below(child, said | {words(rewrite) for rewrite in node.rewrite.rewrites})

    for root in tree.roots:
        yield from below(root, {words(tree.question.text)})


def turns_of(record: Mapping[str, Any], name: str) -> list[tuple[int, str]]:
    """(turn, key) of a per-turn figure, in the order of the turns; those of one environment of a mix are left out."""
    found = (re.fullmatch(rf"{re.escape(name)}/turn(\d+)", key) for key in record)
    return sorted((int(match[1]), match[0]) for match in found if match)
