"""What a training step is described by: one flat record per step, per turn where that makes a difference."""

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

from ..rollouts.chat import Chat
from ..rollouts.tree import Node, Tree
from .credit import Credit


def step_metrics(trees: Sequence[Tree], credit: Credit, chat: Chat) -> dict[str, float]:
    """Means over the nodes of each turn; unscorable turns are counted and left out of the means."""
    by_turn: dict[int, list[Node]] = {}
    for tree in trees:
        for node in tree.walk():
            by_turn.setdefault(node.turn, []).append(node)
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
        put("best_of_group", [max(group.scored) for group in groups if group.scored])
        put("unscorable", [float(node.reward is None) for node in nodes])
        record[f"advantage_spread/turn{turn}"] = pstdev([credit.of(node) for node in nodes])
    return record


def _tokens(count: Callable[[str], int], node: Node) -> float:
    return float(sum(count(rewrite) for rewrite in node.rewrite.rewrites))
