"""Packing: sequences with shared prefixes become one row in which every shared token is computed once.

Rows are merged into a trie and laid out depth first. Key k is visible to query q iff k ≤ q < end of k's subtree; a
token's position is its depth. So each token attends to exactly its ancestors, as it would in its own row, and the
log-probabilities and gradients are those of the flat rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..rollouts.sequences import common_length
from .packed_attention import blocks, take_packed_rows


@dataclass(frozen=True, slots=True)
class Packed:
    """One packed row of T tokens."""

    ids: Tensor
    """(T,) token ids, depth first."""
    positions: Tensor
    """(T,) depth of each token in its sequence."""
    ends: Tensor
    """(T,) one past the last token of each token's subtree."""
    rows: list[list[int]]
    """For each sequence, the packed place of each of its tokens."""


def pack(sequences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Packed:
    """Merge sequences of token ids into one row. Equal prefixes are stored once, whoever they belong to."""
    order = sorted(range(len(sequences)), key=lambda i: list(sequences[i]))
    ids: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    rows: list[list[int]] = [[] for _ in sequences]
    path: list[int] = []
    previous: Sequence[int] = ()
    for row in order:
        sequence = sequences[row]
        shared = common_length(previous, sequence)
        for place in path[shared:]:
            ends[place] = len(ids)
        path = path[:shared]
        for depth in range(shared, len(sequence)):
            path.append(len(ids))
            ids.append(sequence[depth])
            positions.append(depth)
            ends.append(-1)
        rows[row] = list(path)
        previous = sequence
    for place in path:
        ends[place] = len(ids)
    return Packed(
        torch.tensor(ids, device=device),
        torch.tensor(positions, device=device),
        torch.tensor(ends, device=device),
        rows,
    )


def packed_logps(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    wanted: Tensor,
    temperature: float,
    entropies: bool = False,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor | None, int]:
    """Log-probabilities of the wanted completion tokens, computed on one packed row.

    input_ids, attention_mask: (batch, prompt + completion), padding anywhere masked 0. wanted: (batch, completion) True
    where a value is asked for. Returns ((batch, completion) log-probabilities at `temperature`, entropies likewise or
    None, number of packed tokens); places that were not wanted hold 0 and carry no gradient. Entropies are figures to
    look at unless `entropy_gradient`, which costs memory of (wanted tokens, vocabulary), makes them part of a loss.
    """
    batch, completion = wanted.shape
    offset = input_ids.shape[1] - completion
    kept = [row for row in range(batch) if bool(wanted[row].any())]
    logps = input_ids.new_zeros((batch, completion), dtype=torch.float32)
    entropy = torch.zeros_like(logps) if entropies else None
    if not kept:
        return logps.requires_grad_(torch.is_grad_enabled()), entropy, 0

    columns = [attention_mask[row].nonzero()[:, 0].tolist() for row in kept]
    needed = [_last_wanted(wanted[row]) + offset for row in kept]
    columns = [[column for column in row if column <= last] for row, last in zip(columns, needed, strict=True)]
    packed = pack([input_ids[row, seen].tolist() for row, seen in zip(kept, columns, strict=True)], input_ids.device)

    # (row, completion column, packed place that predicts it) of every wanted token
    rows, cells, predictors = [], [], []
    for row, seen, places in zip(kept, columns, packed.rows, strict=True):
        for at, column in enumerate(seen):
            if column >= offset and bool(wanted[row, column - offset]):
                rows.append(row)
                cells.append(column - offset)
                predictors.append(places[at - 1])
    distinct = sorted(set(predictors))
    slot = {place: i for i, place in enumerate(distinct)}
    take_packed_rows(model)
    logits = model(
        input_ids=packed.ids[None],
        position_ids=packed.positions[None],
        packed_blocks=blocks(packed.ends),
        logits_to_keep=torch.tensor(distinct, device=input_ids.device),
        use_cache=False,
    ).logits[0]
    distribution = torch.log_softmax(logits.float() / temperature, dim=-1)
    index = torch.tensor([slot[place] for place in predictors], device=input_ids.device)
    row_index = torch.tensor(rows, device=input_ids.device)
    cell_index = torch.tensor(cells, device=input_ids.device)
    targets = input_ids[row_index, cell_index + offset]
    logps = logps.index_put((row_index, cell_index), distribution[index, targets])
    if entropy is not None:
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            per_place = -(distribution.exp() * distribution).sum(-1)
            entropy = entropy.index_put((row_index, cell_index), per_place[index])
    return logps, entropy, len(packed.ids)


def _last_wanted(wanted: Tensor) -> int:
    return int(wanted.nonzero()[-1])
