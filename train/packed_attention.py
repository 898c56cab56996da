"""Attention over a packed row: a token sees its ancestors, and what no query sees is not computed.

In a depth-first layout key k is visible to query q iff k ≤ q < end of k's subtree. Two ways compute that:

- *sdpa*, everywhere: blocks of queries, each with the keys that it sees gathered. A run of queries sees the ancestors
  of its first token and itself, so a row of T tokens whose sequences are D long costs about T·(D + block) scores;
- *flex*, on GPUs: one FlexAttention kernel with a block mask, which skips the tiles that hold nothing.

The layout of a row travels through the model as the keyword `packed_row`, which transformers hands to attention.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
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

NAME = "querylect_packed"
BLOCK = 256
"""Queries that share one gathering of keys."""
TILE = 128
"""Side of a tile of FlexAttention's block mask; rows are padded to a multiple of it."""

Kind = Literal["sdpa", "flex"]


@dataclass(frozen=True, slots=True)
class Block:
    """Queries [begin, end) of a packed row and what they see."""

    begin: int
    end: int
    keys: Tensor
    """(n,) places of all keys that some query of the block sees, ascending."""
    mask: Tensor
    """(1, 1, end − begin, n) boolean: True where the query sees the key."""


@dataclass(frozen=True, slots=True)
class PackedRow:
    """What attention must know of one packed row: the blocks, or the mask of FlexAttention."""

    longest: int
    """Tokens of the longest sequence in it."""
    seen: list[Block] | BlockMask
    layers: set[int] = field(default_factory=set)
    """The layers that have attended by it."""


def packed_row(ends: Tensor, longest: int, kind: Kind = "sdpa") -> PackedRow:
    """The layout of a row; `ends` (T,) is one past each token's subtree. For `flex` T is a multiple of TILE."""
    return PackedRow(longest, flex_mask(ends) if kind == "flex" else blocks(ends))


def blocks(ends: Tensor, size: int | None = None) -> list[Block]:
    """The blocks of a packed row, of `size` queries (BLOCK); `ends` (T,) is one past each token's subtree."""
    at = torch.arange(len(ends), device=ends.device)
    size = size or BLOCK
    found = []
    for begin in range(0, len(ends), size):
        queries = at[begin : begin + size]
        keys = torch.cat([(ends[:begin] > begin).nonzero()[:, 0], queries])
        mask = (keys[None, :] <= queries[:, None]) & (queries[:, None] < ends[keys][None, :])
        found.append(Block(begin, begin + len(queries), keys, mask[None, None]))
    return found


def flex_mask(ends: Tensor) -> BlockMask:
    """FlexAttention's mask of a row of T tokens, T a multiple of TILE, without writing down T × T entries.

    A tile of keys matters to a later tile of queries iff the furthest-reaching of its keys does, and is seen whole iff
    the shortest-reaching one covers all the queries.
    """
    tiles = ends.view(-1, TILE)
    at = torch.arange(len(tiles), device=ends.device)
    begin = (at * TILE)[:, None]
    before = at[None, :] < at[:, None]
    whole = before & (tiles.min(1).values[None, :] >= begin + TILE)
    partial = (before & (tiles.max(1).values[None, :] > begin) & ~whole) | (at[None, :] == at[:, None])

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    def listed(tile: Tensor) -> tuple[Tensor, Tensor]:
        order = tile.int().argsort(dim=1, descending=True, stable=True).int()
        return tile.sum(1, dtype=torch.int32)[None, None], order[None, None]

    return BlockMask.from_kv_blocks(*listed(partial), *listed(whole), BLOCK_SIZE=TILE, mask_mod=visible)


def take_packed_rows(model: nn.Module) -> None:
    """Let `model` take the keyword `packed_row`; without it, attention stays PyTorch's scaled dot product.

    The setting stays, so that layers that are computed again in a backward pass attend as they did before.
    """
    config: Any = extract_model_from_parallel(model, keep_torch_compile=False).config
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
    **others: Any,
) -> tuple[Tensor, None]:
    if packed_row is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **others
        )
        return plain
    _refuse_more_than_a_mask(packed_row, others)
    packed_row.layers.add(int(module.layer_idx))  # type: ignore[arg-type]
    seen = packed_row.seen
    query, key = query.to(value.dtype), key.to(value.dtype)  # rotary positions under autocast leave them in float32
    if isinstance(seen, BlockMask):
        return _flex(query, key, value, seen, scaling, dropout).transpose(1, 2), None
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
        for block in seen
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


def _refuse_more_than_a_mask(row: PackedRow, asked: dict[str, Any]) -> None:
    """Raise ModelError where a layer asks for something that the ancestor mask alone does not do."""
    names = {"softcap": "soft-capped scores", "s_aux": "attention sinks", "position_bias": "position biases"}
    found = [what for name, what in names.items() if asked.get(name) is not None]
    window = asked.get("sliding_window")
    if window is not None and row.longest > window:
        found.append(f"a sliding window of {window} tokens, and a sequence has {row.longest}")
    if found:
        raise ModelError(
            f"a layer of the policy asks for {' and '.join(found)}, which train.packing does not reproduce"
        )


@cache
def _flex_kernel(device: str) -> Callable[..., Any]:
    """Compiled where that gives a kernel; on a CPU plain, which writes down all scores: for tests."""
    kernel: Any = flex_attention
    return torch.compile(kernel) if device == "cuda" else kernel  # type: ignore[no-any-return]


def _flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scaling: float | None, dropout: float) -> Tensor:
    if dropout:
        raise ModelError(
            f"the policy drops {dropout:g} of its attention while it trains, which FlexAttention does not do. Set "
            "train.packed_attention to sdpa."
        )
    repeats = query.shape[1] // key.shape[1]
    grouped = repeats & (repeats - 1) == 0  # some of its kernels take only powers of two
    if not grouped:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    out: Tensor = _flex_kernel(query.device.type)(
        query, key, value, block_mask=mask, scale=scaling, enable_gqa=grouped and repeats > 1
    )
    return out


AttentionInterface.register(NAME, _forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
