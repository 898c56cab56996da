"""Packing: merge sequences with shared prefixes into one row in which every shared token is computed once.

Sequences are merged into a trie and laid out depth first. Key k is visible to query q iff k ≤ q < end of k's subtree;
a token's position is its depth. Each token attends exactly to its ancestors, as in a separate row, so log-probabilities
and gradients equal those of flat rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...errors import ModelError
from ...rollouts.sequences import common_length
from .attention import TILE, Kind, packed_row, take_packed_rows

HEAD_VALUES = 1 << 24
"""Maximum number of logits converted to float32 probabilities at a time."""
HEAD_CHUNK = 1 << 27
"""Maximum number of logits held at a time. Beyond it, the output head is computed in chunks and recomputed in the
backward pass: the logits of 20 answers of 1,024 tokens over 151,936 words take 12 GiB, and their gradients more."""
_LOGIT_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Config settings of architectures that transform logits after the head."""


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

    def filled(self, multiple: int) -> "Packed":
        """The row padded to a multiple of `multiple` with tokens that attend only to themselves."""
        extra = -len(self.ids) % multiple
        padding = torch.arange(len(self.ids), len(self.ids) + extra, device=self.ids.device)
        return Packed(
            torch.cat([self.ids, torch.zeros_like(padding)]),
            torch.cat([self.positions, torch.zeros_like(padding)]),
            torch.cat([self.ends, padding + 1]),
            self.rows,
        )


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
    temperature: float | Tensor,
    entropies: bool = False,
    entropy_gradient: bool = False,
    attention: Kind = "sdpa",
) -> tuple[Tensor, Tensor | None, int]:
    """Log-probabilities of the completion tokens in `target_mask`, computed on one packed row.

    input_ids, attention_mask: (batch, prompt + completion), padding anywhere masked 0. target_mask: (batch, completion)
    True where a value is needed. temperature: one, or one per row (batch,). Returns ((batch, completion)
    log-probabilities at `temperature`, entropies likewise or None, number of packed tokens). Values outside target_mask
    are 0 and carry no gradient. Entropies have a gradient only with `entropy_gradient`. Raises ModelError if a layer
    does not support packed attention.
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
    packed = pack(sequences, input_ids.device)
    tokens = len(packed.ids)

    # (packed index of the predicting token, row, completion column) of every target
    cells = sorted(
        (packed_indices[i - 1], row, column - offset)
        for row, cols, packed_indices in zip(selected, columns, packed.rows, strict=True)
        for i, column in enumerate(cols)
        if column >= offset and is_target[row][column - offset]
    )
    predictor, row_index, cell_index = torch.tensor(cells, device=input_ids.device).unbind(1)
    distinct, slot = predictor.unique_consecutive(return_inverse=True)
    padded = packed.filled(TILE) if attention == "flex" else packed
    targets = input_ids[row_index, cell_index + offset]
    if not isinstance(temperature, Tensor):
        temperature = torch.full((batch,), temperature, device=input_ids.device)
    divisor = temperature.new_ones(len(distinct)).index_put((slot,), temperature[row_index])
    head = _separable_head(model)
    if head is not None and len(distinct) * head.weight.shape[0] > HEAD_CHUNK:
        with _without_head(head):
            hidden = _logits(model, padded, distinct, attention)
        values, per_slot = _read_hidden(hidden, head, slot, targets, divisor, entropies, entropy_gradient)
    else:
        logits = _logits(model, padded, distinct, attention)
        values, per_slot = _read(logits, slot, targets, divisor, entropies, entropy_gradient)
    logps = logps.index_put((row_index, cell_index), values)
    if entropy is not None and per_slot is not None:
        entropy = entropy.index_put((row_index, cell_index), per_slot[slot])
    return logps, entropy, tokens


def row_logps(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor, target_mask: Tensor, temperature: float
) -> Tensor:
    """`packed_logps` for policies that cannot be packed: row by row, without padding."""
    offset = input_ids.shape[1] - target_mask.shape[1]
    logps = input_ids.new_zeros(target_mask.shape, dtype=torch.float32)
    for row in range(len(input_ids)):
        columns = attention_mask[row].nonzero()[:, 0]
        ids = input_ids[row, columns]
        indices = ((columns >= offset) & target_mask[row, (columns - offset).clamp_min(0)]).nonzero()[:, 0]
        if len(indices):
            logits = model(input_ids=ids[None], use_cache=False).logits[0, indices - 1]
            slot = torch.arange(len(indices), device=indices.device)
            divisor = torch.full((len(indices),), temperature, device=indices.device)
            values, _ = _read(logits, slot, ids[indices], divisor, entropies=False, entropy_gradient=False)
            logps = logps.index_put((indices.new_tensor(row), columns[indices] - offset), values)
    return logps


def _logits(model: nn.Module, packed: Packed, indices: Tensor, attention: Kind) -> Tensor:
    """(len(indices), vocabulary) next-token logits of the packed row at `indices`."""
    take_packed_rows(model)
    layout = packed_row(packed.ends, max(map(len, packed.rows)), attention)
    logits: Tensor = model(
        input_ids=packed.ids[None],
        position_ids=packed.positions[None],
        packed_row=layout,
        logits_to_keep=indices,
        use_cache=False,
    ).logits[0]
    if not layout.layers:
        raise ModelError(
            f"no layer of {type(model).__name__} took what train.packing gives it: its attention does not go through "
            "transformers' attention interface"
        )
    return logits


def _separable_head(model: nn.Module) -> nn.Linear | None:
    """The output head, if log-probabilities are a plain softmax of its output and its weights are not sharded."""
    policy = extract_model_from_parallel(model, keep_torch_compile=False)
    config, head = policy.config.get_text_config(), policy.get_output_embeddings()
    changed = any(getattr(config, name, None) not in (None, 1, 1.0) for name in _LOGIT_SETTINGS)
    return head if isinstance(head, nn.Linear) and not changed and not hasattr(head.weight, "ds_id") else None


@contextmanager
def _without_head(head: nn.Module) -> Iterator[None]:
    """Within this context the model returns the input of its head instead of logits."""
    previous = head.__dict__.get("forward")
    head.forward = lambda hidden: hidden  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del head.forward  # uncovers the method of the class
        if previous is not None:
            head.forward = previous


def _read_hidden(
    hidden: Tensor,
    head: nn.Linear,
    slot: Tensor,
    targets: Tensor,
    temperature: Tensor,
    entropies: bool,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    """`_read` on the logits of hidden states (slots, width), in chunks of HEAD_CHUNK, recomputed for the gradient."""

    def part(hidden: Tensor, divisor: Tensor, slot: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        return _read(head(hidden), slot, targets, divisor, entropies, entropy_gradient)

    size = max(1, HEAD_CHUNK // int(head.weight.shape[0]))
    return _in_chunks(part, hidden, temperature, size, slot, targets)


def _read(
    logits: Tensor, slot: Tensor, targets: Tensor, temperature: Tensor, entropies: bool, entropy_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target at its slot, and the entropy of each slot. logits: (slots, vocabulary);
    temperature: (slots,).

    float32 probabilities would take several times the memory of the logits, so they are computed a few slots at a time
    and recomputed for the gradient.
    """

    def part(logits: Tensor, divisor: Tensor, slot: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        distribution = torch.log_softmax(logits.float() / divisor[:, None], dim=-1)
        entropy = None
        if entropies:
            with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
                entropy = -(distribution.exp() * distribution).sum(-1)
        return distribution[slot, targets], entropy

    return _in_chunks(part, logits, temperature, max(1, HEAD_VALUES // logits.shape[1]), slot, targets)


def _in_chunks(
    part: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]],
    rows: Tensor,
    temperature: Tensor,
    size: int,
    slot: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Apply `part` to `size` rows at a time, with their temperatures and targets, and concatenate; recomputed for the
    gradient."""
    begins = torch.arange(0, len(rows), size, device=rows.device)
    counts = torch.diff(torch.searchsorted(slot, begins), append=slot.new_tensor([len(slot)])).tolist()
    values, per_slot = [], []
    parts = zip(
        begins.tolist(),
        rows.split(size),
        temperature.split(size),
        slot.split(counts),
        targets.split(counts),
        strict=True,
    )
    for begin, chunk, divisor, slots, chunk_targets in parts:
        value, entropy = checkpoint(
            part, chunk, divisor, slots - begin, chunk_targets, use_reentrant=False, preserve_rng_state=False
        )
        values.append(value)
        per_slot.append(entropy)
    entropies = [item for item in per_slot if item is not None]
    return torch.cat(values), torch.cat(entropies) if entropies else None
