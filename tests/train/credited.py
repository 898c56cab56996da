"""The credit of trees, by their nodes."""

from collections.abc import Sequence

import numpy as np
from querylect.rollouts.tree import Node, Tree
from querylect.train.credit import Credit, assign_credit
from querylect.train.turns import turns_of


class Credited:
    """Trees, their turns, and their credit."""

    def __init__(self, trees: Sequence[Tree], credit: str, weights: Sequence[float], scale: str) -> None:
        self.turns = turns_of(trees, weights)
        self.credit: Credit = assign_credit(self.turns, credit, scale)
        self.groups = self.credit.groups
        self.nodes = [node for tree in trees for node in tree.walk()]
        self.rows = {id(node): row for row, node in enumerate(self.nodes)}

    def of(self, node: Node) -> float:
        """The advantage of a node."""
        return float(np.nan_to_num(self.credit.advantages[self.rows[id(node)]]))

    def has_signal(self, node: Node) -> bool:
        """Whether a node is compared with others of other values."""
        return bool(self.credit.has_signal[self.rows[id(node)]])
