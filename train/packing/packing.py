"""Packing: merge sequences with shared prefixes into one row in which every shared token is computed once.

Sequences are merged into a trie and laid out depth first. Key k is visible to query q iff k ≤ q < end of k's subtree;
a token's position is its depth. Each token attends exactly to its ancestors, as in a separate row, so log-probabilities
and gradients equal those of flat rows.

A tree of more than `budget` tokens is split into pieces of neighbouring paths. Each piece computes the prefix that it
shares with the one before again, and every token is scored once, so values and gradients stay those of the whole tree.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...errors import ModelError
from ...rollouts.sequences import common_length
from .attention import Kind, PackedRow, packed_row, take_packed_rows
from .head import ForwardPass, causal_model, score


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
    """For each sequence, the packed index of each of its tokens."""


def pack(sequences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Packed:
    """Merge sequences of token ids into one row. Equal prefixes are stored once."""
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
        for index in path[shared:]:
            ends[index] = len(ids)
        path = path[:shared]
        for depth in range(shared, len(sequence)):
            path.append(len(ids))
            ids.append(sequence[depth])
            positions.append(depth)
            ends.append(-1)
        rows[row] = list(path)
        previous = sequence
    for index in path:
        ends[index] = len(ids)
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
    target_mask: Tensor,
    temperature: float,
    entropies: bool = False,
    entropy_gradient: bool = False,
    attention: Kind | None = "sdpa",
    budget: int | None = None,
    passes: Callable[[int], int] | None = None,
) -> tuple[Tensor, Tensor | None, int]:
    """Log-probabilities of the completion tokens in `target_mask`, computed on packed rows.

    input_ids, attention_mask: (batch, prompt + completion), padding anywhere masked 0. target_mask: (batch, completion)
    True where a value is needed. attention: None computes every path in a padded row
    of its own, for policies that cannot be packed. budget: maximum number of tokens computed at a time, None for all; a
    path that is longer is computed alone. passes: where forward passes are collective, the largest number of them that
    any process needs, from that of this one, which repeats its last one as often as necessary. Returns ((batch,
    completion) log-probabilities at `temperature`, entropies likewise or None, number of computed tokens). Values
    outside target_mask are 0 and carry no gradient. Entropies have a gradient only with `entropy_gradient`. Raises
    ModelError if a layer does not support packed attention.
    """
    batch, completion = target_mask.shape
    offset = input_ids.shape[1] - completion
    is_target: list[list[bool]] = target_mask.tolist()  # one transfer: on a GPU every element access would synchronize
    selected = [row for row in range(batch) if any(is_target[row])]
    logps = input_ids.new_zeros((batch, completion), dtype=torch.float32)
    entropy = torch.zeros_like(logps) if entropies else None
    if not selected:
        return logps.requires_grad_(torch.is_grad_enabled()), entropy, 0

    is_attended, ids = attention_mask.tolist(), input_ids.tolist()
    ends = {row: offset + completion - is_target[row][::-1].index(True) for row in selected}
    columns = [[column for column in range(ends[row]) if is_attended[row][column]] for row in selected]
    sequences = [[ids[row][column] for column in cols] for row, cols in zip(selected, columns, strict=True)]
    nodes = pack(sequences).rows  # equal prefixes have the same node: it is scored once
    cells = [
        (path[i], row, column - offset)
        for row, cols, path in zip(selected, columns, nodes, strict=True)
        for i, column in enumerate(cols)
        if column >= offset and is_target[row][column - offset]
    ]
    targets = {node for node, _, _ in cells}
    pieces, scored, tokens = _pieces(sequences, nodes, targets, attention, budget, input_ids.device)
    layouts = [row for piece in pieces if isinstance(row := piece.inputs.get("packed_row"), PackedRow)]
    if layouts:
        take_packed_rows(model)
    values, per_node = score(model, pieces, temperature, entropies, entropy_gradient, passes)
    if any(not row.layers for row in layouts):
        raise ModelError(
            f"no layer of {type(causal_model(model)).__name__} took what train.packing gives it: its attention does "
            "not go through transformers' attention interface"
        )
    slot_of = {node: slot for slot, node in enumerate(scored)}
    slot, row_index, cell_index = torch.tensor(
        [(slot_of[node], row, column) for node, row, column in cells], device=input_ids.device
    ).unbind(1)
    logps = logps.index_put((row_index, cell_index), values[slot])
    if entropy is not None and per_node is not None:
        entropy = entropy.index_put((row_index, cell_index), per_node[slot])
    return logps, entropy, tokens


def _pieces(
    sequences: Sequence[list[int]],
    nodes: Sequence[list[int]],
    targets: set[int],
    attention: Kind | None,
    budget: int | None,
    device: torch.device,
) -> tuple[list[ForwardPass], list[int], int]:
    """(the forward passes, the nodes of the trie that they score in order, number of tokens that they compute).

    `targets`: the nodes to score."""
    pieces: list[ForwardPass] = []
    scored: list[int] = []
    tokens = 0
    remaining = set(targets)
    for members in _split(sequences, attention is not None, budget):
        paths = [sequences[member] for member in members]
        inputs, rows, computed = _packed(paths, attention, device) if attention is not None else _flat(paths, device)
        tokens += computed
        entries: list[tuple[int, int, int]] = []
        for member, row in zip(members, rows, strict=True):
            for depth, node in enumerate(nodes[member]):
                if node in remaining:
                    remaining.remove(node)
                    entries.append((node, row[depth - 1], sequences[member][depth]))
        if entries:
            entries.sort()
            nodes_of_piece, predictors, ids = zip(*entries, strict=True)
            pieces.append(
                ForwardPass(inputs, torch.tensor(predictors, device=device), torch.tensor(ids, device=device))
            )
            scored += nodes_of_piece
    return pieces, scored, tokens


def _split(sequences: Sequence[list[int]], shared: bool, budget: int | None) -> Iterator[list[int]]:
    """Indices of the paths that are computed at a time, neighbours in the tree together; `shared`: equal prefixes cost
    nothing. A sequence that begins another one is computed with it."""
    order = sorted(range(len(sequences)), key=lambda index: sequences[index])
    piece: list[int] = []
    size = longest = 0
    for index, following in zip(order, [*order[1:], None], strict=True):
        path = sequences[index]
        if following is not None and common_length(path, sequences[following]) == len(path):
            continue
        longest = max(longest, len(path))
        prefix = common_length(sequences[piece[-1]], path) if piece and shared else 0
        grown = size + len(path) - prefix if shared else (len(piece) + 1) * longest
        if piece and budget is not None and grown > budget:
            yield piece
            piece, grown, longest = [], len(path), len(path)
        piece.append(index)
        size = grown
    yield piece


def _packed(
    paths: Sequence[list[int]], attention: Kind, device: torch.device
) -> tuple[dict[str, object], list[list[int]], int]:
    """(inputs of the decoder, for each path the index of each of its tokens, number of tokens)."""
    packed = pack(paths, device)
    layout = packed_row(packed.ends, max(map(len, packed.rows)), attention)
    inputs: dict[str, object] = {"input_ids": packed.ids[None], "position_ids": packed.positions[None]}
    # Without a mask of four dimensions transformers makes one of all pairs of tokens, which no layer looks at.
    inputs |= {"packed_row": layout, "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)}
    return inputs, packed.rows, len(packed.ids)


def _flat(paths: Sequence[list[int]], device: torch.device) -> tuple[dict[str, object], list[list[int]], int]:
    """The same with every path in a row of its own, padded on the right."""
    width = max(map(len, paths))
    ids = torch.tensor([path + [0] * (width - len(path)) for path in paths], device=device)
    mask = torch.tensor([[1] * len(path) + [0] * (width - len(path)) for path in paths], device=device)
    rows = [list(range(number * width, number * width + len(path))) for number, path in enumerate(paths)]
    return {"input_ids": ids, "attention_mask": mask}, rows, sum(map(len, paths))
