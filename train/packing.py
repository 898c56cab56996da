"""Packing: merge sequences with shared prefixes into one row in which every shared token is computed once.

Sequences are merged into a trie and laid out depth first. Key k is visible to query q iff k ≤ q < end of k's subtree;
a token's position is its depth. Each token attends exactly to its ancestors, as in a separate row, so log-probabilities
and gradients equal those of flat rows.

A trie of more than `budget` tokens is split into pieces of neighbouring sequences. Each piece computes the prefix that
it shares with the one before again, and every token is scored once, so values and gradients stay those of the whole.

Whether a policy can be packed is checked by its config, and by a small tree that is computed both ways.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import ModelError
from ..rollouts.engines.transformers import obstacle
from .attention import Kind, attention_kind, packed_row, take_packed_rows
from .head import ForwardPass, score

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

Ids = NDArray[np.int64]

NOISE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Minimum tolerance, as RMS in nats, for log-probabilities computed in two different orders."""


@dataclass(frozen=True, slots=True)
class Trie:
    """Sequences merged into one row of T tokens, depth first."""

    ids: Ids
    """(T,) token ids."""
    positions: Ids
    """(T,) depth of each token in its sequence."""
    ends: Ids
    """(T,) one past the last token of each token's subtree."""
    rows: list[Ids]
    """For each sequence, the index of each of its tokens."""
    order: list[int]
    """The sequences as they are laid out."""


def pack(sequences: Sequence[Ids]) -> Trie:
    """Merge sequences of token ids into one row. Equal prefixes are stored once."""
    order = sorted(range(len(sequences)), key=lambda index: sequences[index].astype(">u4").tobytes())
    empty = np.empty(0, np.int64)
    rows, new_ids, new_positions = [empty] * len(sequences), [empty], [empty]
    ends = np.empty(sum(map(len, sequences)), np.int64)
    path = previous = empty
    count = 0
    for index in order:
        sequence = sequences[index]
        shared = common_length(previous, sequence)
        ends[path[shared:]] = count
        new = np.arange(shared, len(sequence))
        path = np.concatenate([path[:shared], new + (count - shared)])
        new_ids.append(sequence[shared:])
        new_positions.append(new)
        count += len(new)
        rows[index], previous = path, sequence
    ends[path] = count
    return Trie(np.concatenate(new_ids), np.concatenate(new_positions), ends[:count], rows, order)


def common_length(first: Ids, second: Ids) -> int:
    """The length of the common prefix."""
    shortest = min(len(first), len(second))
    differs = first[:shortest] != second[:shortest]
    return int(differs.argmax()) if differs.any() else shortest


def token_logps(
    model: nn.Module,
    sequences: Sequence[Ids],
    targets: Sequence[Ids],
    temperature: float,
    entropies: bool = False,
    entropy_gradient: bool = False,
    attention: Kind | None = "sdpa",
    budget: int | None = None,
    passes: Callable[[int], int] | None = None,
) -> tuple[Tensor, Tensor | None, int]:
    """Log-probabilities of some tokens of each sequence; each distinct token of the trie is computed once.

    targets: for each sequence, the positions ≥ 1 of the tokens to score. attention: None computes every sequence in a
    padded row of its own, for policies that cannot be packed. budget: maximum number of tokens computed at a time, None
    for all; a sequence that is longer is computed alone. passes: where forward passes are collective, the largest
    number of them that any process needs, from that of this one, which repeats its last one as often as necessary.

    Returns ((n,) log-probabilities at `temperature` in the order of the sequences and their targets, entropies likewise
    or None, number of computed tokens). Entropies have a gradient only with `entropy_gradient`.
    Raises ModelError if a layer does more than packed attention, ValueError without any target.
    """
    scored = [index for index, positions in enumerate(targets) if len(positions)]
    if not scored:
        raise ValueError("no token of any sequence is to be scored")
    device = next(model.parameters()).device
    targets = [targets[index] for index in scored]
    sequences = [sequences[index][: int(last.max()) + 1] for index, last in zip(scored, targets, strict=True)]
    trie = pack(sequences)
    entries = np.concatenate([row[positions] for row, positions in zip(trie.rows, targets, strict=True)])
    pieces, slots, tokens = _pieces(trie, sequences, entries, attention, budget, device)
    if attention is not None:
        take_packed_rows(model)
    values, per_node = score(model, pieces, temperature, entropies, entropy_gradient, passes)
    order = torch.from_numpy(slots[entries]).to(device)
    return values[order], None if per_node is None else per_node[order], tokens


def _pieces(
    trie: Trie, sequences: Sequence[Ids], entries: Ids, attention: Kind | None, budget: int | None, device: torch.device
) -> tuple[list[ForwardPass], Ids, int]:
    """(the forward passes, for each node of the trie its index among the scored ones, number of computed tokens)."""
    remaining = np.zeros(len(trie.ids), bool)
    remaining[entries] = True
    slots = np.full(len(trie.ids), -1)
    pieces: list[ForwardPass] = []
    scored = tokens = 0
    for members in _split(trie, sequences, attention is not None, budget):
        paths = [sequences[member] for member in members]
        inputs, rows, computed = _packed(paths, attention, device) if attention is not None else _flat(paths, device)
        tokens += computed
        columns = []
        for member, row in zip(members, rows, strict=True):
            nodes = trie.rows[member]
            fresh = np.flatnonzero(remaining[nodes])
            remaining[nodes[fresh]] = False
            columns.append(np.stack([nodes[fresh], row[fresh - 1], sequences[member][fresh]]))
        nodes, predictors, ids = (joined := np.concatenate(columns, axis=1))[:, joined[0].argsort()]
        if len(nodes):
            slots[nodes] = np.arange(scored, scored + len(nodes))
            scored += len(nodes)
            indices = torch.from_numpy(np.stack([predictors, ids])).to(device)
            pieces.append(ForwardPass(inputs, *indices))
    return pieces, slots, tokens


def _split(trie: Trie, sequences: Sequence[Ids], shared: bool, budget: int | None) -> Iterator[list[int]]:
    """Indices of the sequences that are computed at a time, neighbours in the trie together; `shared`: equal prefixes
    cost nothing. A sequence that begins another one is computed with it."""
    piece: list[int] = []
    size = longest = 0
    for index, following in zip(trie.order, [*trie.order[1:], None], strict=True):
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
    paths: Sequence[Ids], attention: Kind, device: torch.device
) -> tuple[dict[str, object], Sequence[Ids], int]:
    """(inputs of the decoder, for each path the index of each of its tokens, number of tokens)."""
    trie = pack(paths)
    ids, positions, ends = torch.from_numpy(np.stack([trie.ids, trie.positions, trie.ends])).to(device)
    inputs: dict[str, object] = {
        "input_ids": ids[None],
        "position_ids": positions[None],
        "packed_row": packed_row(ends, attention),
        # without a mask of four dimensions transformers makes one of all pairs of tokens, which no layer looks at
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
    }
    return inputs, trie.rows, len(ids)


def _flat(paths: Sequence[Ids], device: torch.device) -> tuple[dict[str, object], Sequence[Ids], int]:
    """The same with every path in a row of its own, padded on the right."""
    width = max(map(len, paths))
    both = np.zeros((2, len(paths), width), np.int64)
    for row, path in enumerate(paths):
        both[:, row, : len(path)] = path, np.ones(len(path))
    ids, mask = torch.from_numpy(both).to(device)
    rows = [np.arange(row * width, row * width + len(path)) for row, path in enumerate(paths)]
    return {"input_ids": ids, "attention_mask": mask}, rows, sum(map(len, paths))


def refuse_unpackable(model: "PreTrainedModel | PeftModel", longest: int) -> None:
    """Raise ModelError if the policy, adapters included, cannot be trained on packed rows of up to `longest` tokens."""
    if reason := why_not(model, longest, attention_kind(next(model.parameters()).device)):
        name = getattr(model.config.get_text_config(), "model_type", "?")
        raise ModelError(
            f"the policy ({name!r}) cannot be trained on packed trees: {reason}. Set train.packing=false to train "
            "every leaf in a row of its own, which costs more, or choose a policy with full attention in every layer "
            "(Llama, SmolLM2, Qwen2, Qwen3, …)."
        )


def why_not(model: "PreTrainedModel | PeftModel", longest: int, kind: Kind = "sdpa") -> str:
    """Why `model` cannot use packed rows with sequences of up to `longest` tokens; "" if it can."""
    config = model.config.get_text_config()
    if unsupported := obstacle(config, longest):
        return f"it uses {unsupported}"
    balance = getattr(config, "router_aux_loss_coef", None)
    if balance and hasattr(config, "output_router_logits"):
        return f"it balances its experts by a loss over the tokens of rows (router_aux_loss_coef {balance:g})"
    try:
        gap, allowed = compare(model, kind)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, ModelError) as error:
        return f"it does not take a packed row ({' '.join(str(error).split())[:200]})"
    if gap <= allowed:  # False for NaN
        return ""
    return f"log-probabilities of packed and flat rows differ by {gap:.2g}, where {allowed:.2g} is rounding"


@torch.no_grad()
def compare(model: "PreTrainedModel | PeftModel", kind: Kind = "sdpa") -> tuple[float, float]:
    """Compute a tree of two first turns and four second turns packed, row by row, and as one padded batch.

    Returns RMS differences in nats: of the packed row from single rows, and what is allowed, by the numerical noise of
    one padded batch against single rows.
    """
    draw, start = np.random.default_rng(0).integers, 12
    words = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    prompt = draw(words, size=start)
    stems = [np.concatenate([prompt, draw(words, size=length)]) for length in (9, 14)]
    rows = [np.concatenate([stem, draw(words, size=length)]) for stem in stems for length in (5, 8)]
    targets = [np.arange(start, len(row)) for row in rows]
    was_training = model.training
    model.eval()
    try:  # flat first, while every layer still has its own attention
        pairs = zip(rows, targets, strict=True)
        single = torch.cat([token_logps(model, [row], [target], 1.0, attention=None)[0] for row, target in pairs])
        batched, _, _ = token_logps(model, rows, targets, 1.0, attention=None)
        packed, _, _ = token_logps(model, rows, targets, 1.0, attention=kind)
    finally:
        model.train(was_training)
    gap, noise = (float((logps - single).square().mean().sqrt()) for logps in (packed, batched))
    return gap, max(NOISE.get(next(model.parameters()).dtype, NOISE[torch.float32]), 3 * noise)
