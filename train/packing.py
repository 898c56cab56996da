"""Packing: sequences with shared prefixes become one row in which every shared token is computed once.

Rows are merged into a trie and laid out depth first. Key k is visible to query q iff k ≤ q < end of k's subtree; a
token's position is its depth. So each token attends to exactly its ancestors, as it would in its own row, and the
log-probabilities and gradients are those of the flat rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import ModelError
from ..rollouts.sequences import common_length
from .packed_attention import TILE, Kind, packed_row, take_packed_rows

HEAD_VALUES = 1 << 24
"""Logits that are turned into float32 probabilities at a time."""
HEAD_CHUNK = 1 << 27
"""Logits that are held at a time. Where there are more, the output head is computed in chunks and again in the
backward pass: all logits of 20 answers of 1,024 tokens over 151,936 words take 12 GiB, and their gradients more."""
_LOGIT_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Settings by which an architecture changes logits after its head."""


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

    def filled(self, multiple: int) -> "Packed":
        """The same row with tokens that see and are seen by nothing behind it, up to a multiple of `multiple`."""
        extra = -len(self.ids) % multiple
        own = torch.arange(len(self.ids), len(self.ids) + extra, device=self.ids.device)
        return Packed(
            torch.cat([self.ids, torch.zeros_like(own)]),
            torch.cat([self.positions, torch.zeros_like(own)]),
            torch.cat([self.ends, own + 1]),
            self.rows,
        )


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
    temperature: float | Tensor,
    entropies: bool = False,
    entropy_gradient: bool = False,
    attention: Kind = "sdpa",
) -> tuple[Tensor, Tensor | None, int]:
    """Log-probabilities of the wanted completion tokens, computed on one packed row.

    input_ids, attention_mask: (batch, prompt + completion), padding anywhere masked 0. wanted: (batch, completion) True
    where a value is asked for. temperature: one, or one for each row (batch,). Returns ((batch, completion)
    log-probabilities at `temperature`, entropies likewise or None, number of packed tokens). Cells that were not wanted
    hold 0 and carry no gradient. Entropies are figures to look at unless `entropy_gradient` makes them part of a loss.
    Raises ModelError where a layer cannot attend so.
    """
    batch, completion = wanted.shape
    offset = input_ids.shape[1] - completion
    asked: list[list[bool]] = wanted.tolist()  # once: on a GPU every single look at it would wait for the device
    kept = [row for row in range(batch) if any(asked[row])]
    logps = input_ids.new_zeros((batch, completion), dtype=torch.float32)
    entropy = torch.zeros_like(logps) if entropies else None
    if not kept:
        return logps.requires_grad_(torch.is_grad_enabled()), entropy, 0

    attended, ids = attention_mask.tolist(), input_ids.tolist()
    ends = {row: offset + completion - asked[row][::-1].index(True) for row in kept}
    columns = [[column for column in range(ends[row]) if attended[row][column]] for row in kept]
    sequences = [[ids[row][column] for column in seen] for row, seen in zip(kept, columns, strict=True)]
    packed = pack(sequences, input_ids.device)
    tokens = len(packed.ids)

    # (packed place that predicts it, row, completion column) of every wanted token
    cells = sorted(
        (places[at - 1], row, column - offset)
        for row, seen, places in zip(kept, columns, packed.rows, strict=True)
        for at, column in enumerate(seen)
        if column >= offset and asked[row][column - offset]
    )
    predictor, row_index, cell_index = torch.tensor(cells, device=input_ids.device).unbind(1)
    distinct, slot = predictor.unique_consecutive(return_inverse=True)
    row = packed.filled(TILE) if attention == "flex" else packed
    targets = input_ids[row_index, cell_index + offset]
    if not isinstance(temperature, Tensor):
        temperature = torch.full((batch,), temperature, device=input_ids.device)
    divisor = temperature.new_ones(len(distinct)).index_put((slot,), temperature[row_index])
    head = _separable_head(model)
    if head is not None and len(distinct) * head.weight.shape[0] > HEAD_CHUNK:
        with _without_head(head):
            hidden = _logits(model, row, distinct, attention)
        values, per_slot = _read_hidden(hidden, head, slot, targets, divisor, entropies, entropy_gradient)
    else:
        logits = _logits(model, row, distinct, attention)
        values, per_slot = _read(logits, slot, targets, divisor, entropies, entropy_gradient)
    logps = logps.index_put((row_index, cell_index), values)
    if entropy is not None and per_slot is not None:
        entropy = entropy.index_put((row_index, cell_index), per_slot[slot])
    return logps, entropy, tokens


def row_logps(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor, wanted: Tensor, temperature: float
) -> Tensor:
    """What `packed_logps` gives, for policies that cannot be packed: every row by itself, without its padding."""
    offset = input_ids.shape[1] - wanted.shape[1]
    logps = input_ids.new_zeros(wanted.shape, dtype=torch.float32)
    for row in range(len(input_ids)):
        columns = attention_mask[row].nonzero()[:, 0]
        ids = input_ids[row, columns]
        at = ((columns >= offset) & wanted[row, (columns - offset).clamp_min(0)]).nonzero()[:, 0]
        if len(at):
            logits = model(input_ids=ids[None], use_cache=False).logits[0, at - 1]
            slot = torch.arange(len(at), device=at.device)
            divisor = torch.full((len(at),), temperature, device=at.device)
            values, _ = _read(logits, slot, ids[at], divisor, entropies=False, entropy_gradient=False)
            logps = logps.index_put((at.new_tensor(row), columns[at] - offset), values)
    return logps


def _logits(model: nn.Module, packed: Packed, places: Tensor, attention: Kind) -> Tensor:
    """(places, vocabulary) next-token logits of the packed row at `places`."""
    take_packed_rows(model)
    layout = packed_row(packed.ends, max(map(len, packed.rows)), attention)
    logits: Tensor = model(
        input_ids=packed.ids[None],
        position_ids=packed.positions[None],
        packed_row=layout,
        logits_to_keep=places,
        use_cache=False,
    ).logits[0]
    if not layout.layers:
        raise ModelError(
            f"no layer of {type(model).__name__} took what train.packing gives it: its attention does not go through "
            "transformers' attention interface"
        )
    return logits


def _separable_head(model: nn.Module) -> Any:
    """The output head where log-probabilities are a plain softmax of what it gives and this process holds all of it."""
    policy: Any = extract_model_from_parallel(model, keep_torch_compile=False)
    config, head = policy.config.get_text_config(), policy.get_output_embeddings()
    changed = any(getattr(config, name, None) not in (None, 1, 1.0) for name in _LOGIT_SETTINGS)
    return head if isinstance(head, nn.Linear) and not changed and not hasattr(head.weight, "ds_id") else None


@contextmanager
def _without_head(head: nn.Module) -> Iterator[None]:
    """Let the model give what its head would be given as its logits."""
    before = head.__dict__.get("forward")
    head.forward = lambda hidden: hidden  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del head.forward  # the method of its class again
        if before is not None:
            head.forward = before


def _read_hidden(
    hidden: Tensor,
    head: Any,
    slot: Tensor,
    targets: Tensor,
    temperature: Tensor,
    entropies: bool,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    """`_read` of the head's logits of hidden states (slots, width), HEAD_CHUNK logits at a time, made again where a
    gradient is taken."""

    def part(hidden: Tensor, divisor: Tensor, slot: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        return _read(head(hidden), slot, targets, divisor, entropies, entropy_gradient)

    size = max(1, HEAD_CHUNK // int(head.weight.shape[0]))
    return _in_chunks(part, hidden, temperature, size, slot, targets)


def _read(
    logits: Tensor, slot: Tensor, targets: Tensor, temperature: Tensor, entropies: bool, entropy_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target at its slot, and the entropy of each slot. logits: (slots, vocabulary);
    temperature: (slots,).

    Probabilities in float32 would take several times the memory of the logits: they are made a few slots at a time, and
    made again where a gradient is taken.
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
    """`part` of `size` rows at a time with their temperatures and the targets at their slots, joined; computed again
    for the gradient."""
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
    for begin, chunk, divisor, slots, wanted in parts:
        value, entropy = checkpoint(
            part, chunk, divisor, slots - begin, wanted, use_reentrant=False, preserve_rng_state=False
        )
        values.append(value)
        per_slot.append(entropy)
    found = [each for each in per_slot if each is not None]
    return torch.cat(values), torch.cat(found) if found else None
