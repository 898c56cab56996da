"""Attention over a packed row: each token attends to its ancestors; invisible keys are skipped.

In a depth-first layout key k is visible to query q iff k ≤ q < end of k's subtree. Two implementations:

- *sdpa*, on every device: blocks of queries, each with its visible keys gathered. A block sees the ancestors of its
  first token and itself, so a row of T tokens with sequences of length D costs about T·(D + block) scores;
- *flex*, on GPUs: one FlexAttention kernel with a block mask, which skips empty tiles. It is compiled for each length,
  so queries, keys and values are padded to one of four lengths per doubling. Without compilation FlexAttention would
  materialize T × T scores; that is an error here.

The layout of a row is passed through the model as the keyword argument `packed_row`, which transformers forwards to the
attention function.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ...errors import ModelError, in_one_line
from .limits import BLOCK

NAME = "querylect_packed"
TILE = 128
"""Tile size of FlexAttention's block mask; it covers a multiple of it."""
RECOMPILATIONS = 144
"""Maximum number of compiled kernels: 36 lengths up to 131,072 tokens, with and without gradient, in two types."""

Kind = Literal["sdpa", "flex"]


@dataclass(frozen=True, slots=True)
class Block:
    """Queries [begin, end) of a packed row and their visible keys."""

    begin: int
    end: int
    keys: Tensor
    """(n,) indices of all keys visible to any query of the block, ascending."""
    mask: Tensor
    """(1, 1, end − begin, n) boolean: True where the query attends to the key."""


@dataclass(frozen=True, slots=True)
class PackedRow:
    """The attention layout of one packed row: blocks for sdpa, or the mask of FlexAttention."""

    longest: int
    """Length of the longest sequence in the row."""
    mask: list[Block] | BlockMask
    layers: set[int] = field(default_factory=set)
    """Indices of the layers that have used this layout."""


def packed_row(ends: Tensor, longest: int, kind: Kind = "sdpa") -> PackedRow:
    """The layout of a row; `ends` (T,) is one past each token's subtree."""
    return PackedRow(longest, flex_mask(_padded(ends)) if kind == "flex" else blocks(ends))


def compiled_length(tokens: int) -> int:
    """The length to which FlexAttention's inputs of `tokens` are padded: a multiple of TILE, one of four per doubling,
    so less than a quarter (or TILE) is added."""
    step = max(TILE, 1 << max(0, (tokens - 1).bit_length() - 3))
    return -(-tokens // step) * step


def _padded(ends: Tensor) -> Tensor:
    """`ends` with padding tokens that attend only to themselves."""
    return torch.cat([ends, torch.arange(len(ends), compiled_length(len(ends)), device=ends.device) + 1])


def blocks(ends: Tensor, size: int | None = None) -> list[Block]:
    """The blocks of a packed row, of `size` queries (BLOCK); `ends` (T,) is one past each token's subtree."""
    indices = torch.arange(len(ends), device=ends.device)
    size = size or BLOCK
    result = []
    for begin in range(0, len(ends), size):
        queries = indices[begin : begin + size]
        keys = torch.cat([(ends[:begin] > begin).nonzero()[:, 0], queries])
        mask = (keys[None, :] <= queries[:, None]) & (queries[:, None] < ends[keys][None, :])
        result.append(Block(begin, begin + len(queries), keys, mask[None, None]))
    return result


def flex_mask(ends: Tensor) -> BlockMask:
    """FlexAttention's mask of a row of T tokens, T a multiple of TILE, without materializing T × T entries.

    A tile of keys is partly visible to a later tile of queries iff its maximum subtree end reaches into that tile, and
    fully visible iff its minimum subtree end covers it.
    """
    tiles = ends.view(-1, TILE)
    index = torch.arange(len(tiles), device=ends.device)
    begin = (index * TILE)[:, None]
    earlier = index[None, :] < index[:, None]
    full = earlier & (tiles.min(1).values[None, :] >= begin + TILE)
    partial = (earlier & (tiles.max(1).values[None, :] > begin) & ~full) | (index[None, :] == index[:, None])

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    def counts_and_order(tile: Tensor) -> tuple[Tensor, Tensor]:
        order = tile.int().argsort(dim=1, descending=True, stable=True).int()
        return tile.sum(1, dtype=torch.int32)[None, None], order[None, None]

    return BlockMask.from_kv_blocks(
        *counts_and_order(partial), *counts_and_order(full), BLOCK_SIZE=TILE, mask_mod=visible
    )


def take_packed_rows(model: nn.Module) -> None:
    """Make `model` accept the keyword `packed_row`; calls without it still use PyTorch's scaled dot product attention.

    The setting is not reverted, so that gradient checkpointing recomputes layers with the same attention.
    """
    config = extract_model_from_parallel(model, keep_torch_compile=False).config
    if config._attn_implementation != NAME:
        config._attn_implementation = NAME


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_row: PackedRow | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if packed_row is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
        return plain
    _refuse_more_than_a_mask(packed_row, kwargs)
    packed_row.layers.add(int(module.layer_idx))  # type: ignore[arg-type]
    visible = packed_row.mask
    query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast, rotary embeddings return float32
    if isinstance(visible, BlockMask):
        return _flex(query, key, value, visible, scaling, dropout).transpose(1, 2), None
    repeats = query.shape[1] // key.shape[1]
    parts = [
        nn.functional.scaled_dot_product_attention(
            query[:, :, block.begin : block.end],
            key[:, :, block.keys].repeat_interleave(repeats, dim=1),
            value[:, :, block.keys].repeat_interleave(repeats, dim=1),
            attn_mask=block.mask,
            dropout_p=dropout,
            scale=scaling,
        )
        for block in visible
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


def _refuse_more_than_a_mask(row: PackedRow, kwargs: Mapping[str, object]) -> None:
    """Raise ModelError if a layer passes arguments that change attention beyond the ancestor mask."""
    names = {"softcap": "soft-capped scores", "s_aux": "attention sinks", "position_bias": "position biases"}
    unsupported = [feature for name, feature in names.items() if kwargs.get(name) is not None]
    window = kwargs.get("sliding_window")
    if isinstance(window, int) and row.longest > window:
        unsupported.append(f"a sliding window of {window} tokens, and a sequence has {row.longest}")
    if unsupported:
        raise ModelError(
            f"a layer of the policy asks for {' and '.join(unsupported)}, which train.packing does not reproduce"
        )


def _compiled_only(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: BlockMask, scale: float | None, enable_gqa: bool
) -> Tensor:
    if not torch.compiler.is_dynamo_compiling():
        raise _not_compiled("torch.compile is disabled")
    return flex_attention(query, key, value, block_mask=block_mask, scale=scale, enable_gqa=enable_gqa)


@cache
def _flex_kernel(device: str) -> Callable[..., object]:
    """FlexAttention, compiled on CUDA; on a CPU the eager version, which materializes all scores, for tests."""
    if device == "cuda":
        # fullgraph: past the limit it raises, where it would else run uncompiled
        limits: dict[str, Any] = {"recompile_limit": RECOMPILATIONS}  # not in the overloads of torch 2.13
        return torch.compile(_compiled_only, fullgraph=True, dynamic=False, **limits)
    return flex_attention


def _not_compiled(reason: str) -> ModelError:
    return ModelError(
        f"FlexAttention was not compiled ({reason}), and uncompiled it materializes the scores of all pairs of tokens. "
        "Set train.packing to false."
    )


def _flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scaling: float | None, dropout: float) -> Tensor:
    if dropout:
        raise ModelError(
            f"the policy drops {dropout:g} of its attention while it trains, which FlexAttention does not do. Set "
            "train.packing to false."
        )
    tokens, length = query.shape[2], mask.shape[-1]
    if tokens < length:
        query, key, value = (_pad(states, length - tokens) for states in (query, key, value))
    repeats = query.shape[1] // key.shape[1]
    grouped = repeats & (repeats - 1) == 0  # some FlexAttention kernels support only powers of two
    if not grouped:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    try:
        out = _flex_kernel(query.device.type)(
            query, key, value, block_mask=mask, scale=scaling, enable_gqa=grouped and repeats > 1
        )
    except (TorchDynamoException, FailOnRecompileLimitHit) as error:
        raise _not_compiled(f"{type(error).__name__}: {in_one_line(error.__cause__ or error)}") from error
    assert isinstance(out, Tensor)  # not asked for log-sum-exps, it returns nothing else
    return out[:, :, :tokens]


def _pad(states: Tensor, extra: int) -> Tensor:
    """`states` (1, heads, T, width) with `extra` tokens, in the memory layout (T, heads, width) of the projections."""
    return nn.functional.pad(states.transpose(1, 2), (0, 0, 0, 0, 0, extra)).transpose(1, 2)


AttentionInterface.register(NAME, _forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
