"""Metrics of a training step: one flat record per step, with per-turn values where they apply."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, pstdev

from ..data.leakage import words
from ..rewriters.repeats import repeats
from ..rollouts.chat import Chat
from ..rollouts.tree import Node, Tree
from .credit import Credit, states

FINAL_REWARD = "final_reward"
"""The mean reward at the end of a path. Where a turn stopped, that of the last turn is only of paths that went on."""


def step_metrics(trees: Sequence[Tree], credit: Credit, chat: Chat) -> dict[str, float]:
    """Means over the nodes of each turn; failed searches, and turns below them, are counted and in no mean.

    `zero_variance` is a share of groups, `signal` a share of nodes; `states` is the number of distinct states per
    question. `stopped`, `final_reward` and `searches_per_path` are there where a turn stopped; the last also where
    searches cost.
    """
    by_turn: dict[int, list[tuple[Node, set[str]]]] = {}
    for tree in trees:
        for node, history in _with_history(tree):
            by_turn.setdefault(node.turn, []).append((node, history))
    by_state = states(trees)
    record: dict[str, float] = {}
    for turn, with_history in sorted(by_turn.items()):
        nodes = [node for node, _ in with_history]
        scored = [node for node in nodes if node.reward is not None]
        groups = [group for group in credit.groups if group.turn == turn]

        def put(name: str, values: list[float], turn: int = turn) -> None:
            if values:
                record[f"{name}/turn{turn}"] = fmean(values)

        rewards = [node.reward for node in scored if node.reward is not None]
        put("reward", rewards)
        if rewards:
            put("reward_min", [min(rewards)])
            put("reward_max", [max(rewards)])
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
        if any(node.rewrite.stop for node in nodes):
            put("stopped", [float(node.rewrite.stop) for node in nodes])
        put("failed_search", [float(node.reward is None) for node in nodes])
        put("entropy", [-logprob for node in nodes for logprob in node.logprobs])
        rewritten = [(node.rewrite.rewrites, history) for node, history in with_history if node.rewrite.rewrites]
        put("copy", [float(repeats(rewrites, history)) for rewrites, history in rewritten])
        record[f"advantage_spread/turn{turn}"] = pstdev([credit.of(node) for node in nodes])
    return record | _path_metrics(trees)


def _path_metrics(trees: Sequence[Tree]) -> dict[str, float]:
    """Means over the scored paths, if a turn stopped or searches cost: each stop counts as the paths that it ends."""
    nodes = [node for tree in trees for node in tree.walk()]
    stopped = any(node.rewrite.stop for node in nodes)
    paths = [path for tree in trees for path in tree.paths() if path[-1].reward is not None]
    record: dict[str, float] = {}
    if paths and (stopped or any(node.cost for node in nodes)):
        record["searches_per_path"] = fmean(sum(node.searched for node in path) for path in paths)
    if paths and stopped:
        record[FINAL_REWARD] = fmean(path[-1].reward or 0.0 for path in paths)
    return record


def _tokens(count: Callable[[str], int], node: Node) -> float:
    return float(sum(count(rewrite) for rewrite in node.rewrite.rewrites))


def _with_history(tree: Tree) -> Iterator[tuple[Node, set[str]]]:
    """Every node, depth first, with the normalized question and rewrites of the turns above it."""

    def subtree(node: Node, history: set[str]) -> Iterator[tuple[Node, set[str]]]:
        yield node, history
        for child in node.children:
            yield from subtree(child, history | {words(rewrite) for rewrite in node.rewrite.rewrites})

    for root in tree.roots:
        yield from subtree(root, {words(tree.question.text)})


def turns_of(record: Mapping[str, object], name: str) -> list[tuple[int, str]]:
    """(turn, key) of a per-turn metric, ordered by turn; keys of a single environment of a mix are excluded."""
    matches = (re.fullmatch(rf"{re.escape(name)}/turn(\d+)", key) for key in record)
    return sorted((int(match[1]), match[0]) for match in matches if match)
