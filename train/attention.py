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

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..errors import ModelError
from .memory import BLOCK

NAME = "querylect_packed"
TILE = 128
"""Tile size of FlexAttention's block mask; it covers a multiple of it."""
RECOMPILATIONS = 144
"""Maximum number of compiled kernels: 36 lengths up to 131,072 tokens, with and without gradient, in two types."""

Kind = Literal["sdpa", "flex"]


def attention_kind(device: torch.device) -> Kind:
    """The attention implementation for this device."""
    return "flex" if device.type == "cuda" else "sdpa"


@dataclass(frozen=True, slots=True)
class Block:
    """Queries [begin, end) of a packed row and their visible keys."""

    begin: int
    end: int
    keys: Tensor
    """(n,) indices of all keys visible to any query of the block, ascending."""
    mask: Tensor
    """(1, 1, end − begin, n) boolean: True where the query attends to the key."""


PackedRow = list[Block] | BlockMask
"""The attention layout of one packed row: blocks for sdpa, or the mask of FlexAttention."""


def packed_row(ends: Tensor, kind: Kind = "sdpa") -> PackedRow:
    """The layout of a row; `ends` (T,) is one past each token's subtree. For FlexAttention padding tokens, which attend
    only to themselves, are added up to a multiple of TILE, one of four per doubling: less than a quarter, or TILE."""
    if kind == "sdpa":
        return blocks(ends)
    tokens = len(ends)
    step = max(TILE, 1 << max(0, (tokens - 1).bit_length() - 3))
    length = -(-tokens // step) * step
    return flex_mask(torch.cat([ends, torch.arange(tokens, length, device=ends.device) + 1]))


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
    """Make `model` accept the keyword `packed_row`, from now on; calls without it still use PyTorch's scaled dot
    product attention."""
    extract_model_from_parallel(model, keep_torch_compile=False).config._attn_implementation = NAME


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
    more = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if more or (dropout and isinstance(packed_row, BlockMask)):
        raise ModelError(
            f"the policy asks for {', '.join(more) or 'dropout'} in attention, which packed rows do not do"
        )
    query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast, rotary embeddings return float32
    if isinstance(packed_row, BlockMask):
        return _flex(query, key, value, packed_row, scaling).transpose(1, 2), None
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
        for block in packed_row
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


def _compiled_only(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Any:
    if not torch.compiler.is_dynamo_compiling():
        raise ModelError("torch.compile is disabled, which FlexAttention needs. Set train.packing to false.")
    return flex_attention(query, key, value, **how)


@cache
def _flex_kernel(device: str) -> Callable[..., Any]:
    """FlexAttention, compiled on CUDA; on a CPU the eager version, which materializes all scores, for tests."""
    if device == "cuda":
        # fullgraph: past the limit it raises, where it would else run uncompiled
        limits: dict[str, Any] = {"recompile_limit": RECOMPILATIONS}  # not in the overloads of torch 2.13
        return torch.compile(_compiled_only, fullgraph=True, dynamic=False, **limits)
    return flex_attention


def _flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scaling: float | None) -> Tensor:
    tokens, length = query.shape[2], mask.shape[-1]
    if tokens < length:
        query, key, value = (_pad(states, length - tokens) for states in (query, key, value))
    repeats = query.shape[1] // key.shape[1]
    grouped = repeats & (repeats - 1) == 0  # some FlexAttention kernels support only powers of two
    if not grouped:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    kernel = _flex_kernel(query.device.type)
    out: Tensor = kernel(query, key, value, block_mask=mask, scale=scaling, enable_gqa=grouped and repeats > 1)
    return out[:, :, :tokens]


def _pad(states: Tensor, extra: int) -> Tensor:
    """`states` (1, heads, T, width) with `extra` tokens, in the memory layout (T, heads, width) of the projections."""
    return nn.functional.pad(states.transpose(1, 2), (0, 0, 0, 0, 0, extra)).transpose(1, 2)


AttentionInterface.register(NAME, _forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
