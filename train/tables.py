"""Sampled trees as a table: one row per turn, parents before their children."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..rollouts.tree import Node, Tree

COLUMNS = ("step", "question", "turn", "branch", "said", "rewrites", "failure", "reward", "metric", "first document")


def rows(step: int, trees: Sequence[Tree], metric: str) -> list[list[Any]]:
    """The table's rows. `branch` numbers siblings from 1: 2.3 is the third answer under the second first turn."""

    def below(question: str, siblings: Sequence[Node], above: str) -> Iterator[list[Any]]:
        for number, node in enumerate(siblings, start=1):
            branch = f"{above}{number}"
            first = node.ranking[0].document.title or node.ranking[0].document.id if node.ranking else ""
            yield [
                step,
                question,
                node.turn,
                branch,
                node.text,
                " · ".join(node.rewrite.rewrites),
                node.rewrite.failure or "",
                node.reward,
                node.metrics.get(metric) if node.reward is not None else None,
                first,
            ]
            yield from below(question, node.children, f"{branch}.")

    return [row for tree in trees for row in below(tree.question.text, tree.roots, "")]
