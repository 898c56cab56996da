"""What the optimizer steps on a rollout need: the turns of each micro-batch as the loss takes them.

A node of a tree is there once. It stands in the path of every leaf below it, and each leaf counts the same (Yuan et
al., eq. 3), so the loss of a turn is multiplied by its number of leaves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from ..rollouts.tree import Tree
from .turns import Floats, Ints


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

    def sequences(self) -> tuple[list[Ints], list[Ints]]:
        """(the ids of each turn, the positions of its completion)."""
        ids = np.split(self.ids.cpu().numpy(), np.cumsum(self.lengths.tolist())[:-1])
        sampled = zip(self.lengths.tolist(), self.completions.tolist(), strict=True)
        return ids, [np.arange(length - completion, length) for length, completion in sampled]

    def by_token(self, values: Tensor) -> Tensor:
        """(n,) the value (t,) of the turn of each token."""
        return values.repeat_interleave(self.completions.to(values.device))

    def mean_by_turn(self, values: Tensor) -> Tensor:
        """(t,) the mean of values (n,) over the tokens of each turn."""
        counts = self.completions.to(values.device)
        turn = torch.arange(len(counts), device=values.device).repeat_interleave(counts)
        return values.new_zeros(len(counts)).index_add(0, turn, values) / counts.clamp(min=1)


def turn_batch(
    trees: Sequence[Tree],
    leaves: Ints,
    advantages: Floats,
    computed: NDArray[np.bool_],
    collective: bool,
    device: torch.device,
) -> TurnBatch:
    """The turns of `trees` that are `computed` (n,), with their `leaves` (n,) and `advantages` (n,).

    `collective`: other processes wait for this one's gradient, so where no turn is computed, the first is there with
    weight 0.
    """
    nodes = [node for tree in trees for node in tree.walk()]
    rows, weights = np.flatnonzero(computed), leaves
    if collective and not len(rows):
        rows = np.array([row for row, node in enumerate(nodes) if node.completion_ids][:1], np.int64)
        weights = np.zeros_like(leaves)
    turns = [nodes[row] for row in rows]
    ids = [token for node in turns for token in (*node.prompt_ids, *node.completion_ids)]
    logps = [value for node in turns for value in node.logprobs or [nan] * len(node.completion_ids)]
    return TurnBatch(
        torch.tensor(ids, dtype=torch.long),
        torch.tensor([len(node.prompt_ids) + len(node.completion_ids) for node in turns], dtype=torch.long),
        torch.tensor([len(node.completion_ids) for node in turns], dtype=torch.long),
        torch.tensor(np.nan_to_num(advantages[rows]), dtype=torch.float32, device=device),
        torch.tensor(weights[rows], dtype=torch.float32, device=device),
        torch.tensor(logps, dtype=torch.float32, device=device),
        torch.tensor(float(sum(tree.turns for tree in trees for _ in tree.paths())), device=device),
    )


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one sampling of trees gives to the optimizer steps on it, in this process."""

    batches: Sequence[TurnBatch]
    """Its micro-batches."""
    tokens: float
    """Sampled tokens of all paths of the step, over all processes, divided by the number of processes."""
    metrics: Mapping[str, float]
    """Of the trees of all processes."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Tokens and paths sampled and searches made by this process for this step, replaced trees included."""
    logged: Sequence[Mapping[str, JsonValue]] = ()
    """Trees for rollouts.jsonl. Like `counts` they are those of the first step on the rollout alone."""
