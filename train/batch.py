"""The turns of a micro-batch as the loss takes them: every node of a tree once, with its weight.

A node stands in the path of every leaf below it, and each leaf counts the same (Yuan et al., eq. 3), so the loss of a
turn is multiplied by its number of leaves. A path that stopped early counts as the leaves that would have grown there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..rollouts.tree import Tree
from .credit import Credit


@dataclass(frozen=True, slots=True)
class TurnBatch:
    """t turns with n sampled tokens in all. Fields of tokens are in the order of the turns."""

    ids: Tensor
    """Prompt and completion ids of all turns, one after another."""
    lengths: Tensor
    """(t,) prompt and completion tokens of each turn."""
    completions: Tensor
    """(t,) completion tokens of each turn, which are the last ones."""
    advantages: Tensor
    """(t,) float32."""
    leaves: Tensor
    """(t,) float32: leaves below each turn. 0 for a turn that is computed for the sake of other processes alone."""
    sampler_logps: Tensor
    """(n,) log-probabilities at sampling; NaN where the engine did not record them."""
    paths: Tensor
    """() turns of all paths of the micro-batch, those without signal and those that a stop left out included."""
    old_logps: Tensor | None = None
    """(n,) log-probabilities before the first update on this rollout; None: those of the update itself."""
    reference_logps: Tensor | None = None
    """(n,) log-probabilities of the reference model, where the loss has a KL term."""

    def sequences(self) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """(the ids of each turn, the positions of its completion)."""
        ids = np.split(self.ids.cpu().numpy(), np.cumsum(self.lengths.tolist())[:-1])
        sampled = zip(self.lengths.tolist(), self.completions.tolist(), strict=True)
        return ids, [np.arange(length - completion, length) for length, completion in sampled]

    def by_token(self, values: Tensor) -> Tensor:
        """(n,) the value (t,) of the turn of each token."""
        return values.repeat_interleave(self.completions.to(values.device))


def leaves_below(trees: Sequence[Tree]) -> Counter[int]:
    """Number of leaves below each node, by id(node)."""
    return Counter(id(node) for tree in trees for path in tree.paths() for node in path)


def sampled_tokens(trees: Sequence[Tree]) -> int:
    """Sampled tokens of all paths, a turn as often as it has leaves."""
    leaves = leaves_below(trees)
    return sum(leaves[id(node)] * len(node.completion_ids) for tree in trees for node in tree.walk())


def turn_batch(trees: Sequence[Tree], credit: Credit, every: bool, collective: bool, device: torch.device) -> TurnBatch:
    """The turns of `trees` that have a signal, or all of them (`every`).

    `collective`: other processes wait for this one's gradient, so where no turn has a signal, the first is there with
    weight 0.
    """
    leaves = leaves_below(trees)
    nodes = [node for tree in trees for node in tree.walk()]
    turns = [node for node in nodes if every or credit.has_signal(node)]
    weights = [float(leaves[id(node)]) for node in turns]
    if collective and not turns:
        turns = [node for node in nodes if node.completion_ids][:1]
        weights = [0.0] * len(turns)
    unknown = float("nan")
    return TurnBatch(
        ids=torch.tensor(
            [token for node in turns for token in (*node.prompt_ids, *node.completion_ids)], dtype=torch.long
        ),
        lengths=torch.tensor([len(node.prompt_ids) + len(node.completion_ids) for node in turns], dtype=torch.long),
        completions=torch.tensor([len(node.completion_ids) for node in turns], dtype=torch.long),
        advantages=torch.tensor([credit.of(node) for node in turns], device=device),
        leaves=torch.tensor(weights, device=device),
        sampler_logps=torch.tensor(
            [value for node in turns for value in node.logprobs or [unknown] * len(node.completion_ids)], device=device
        ),
        paths=torch.tensor(float(sum(tree.turns for tree in trees for _ in tree.paths())), device=device),
    )
