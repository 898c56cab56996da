"""Attention over a packed row, block by block: what no query of a block can see is not computed.

In a depth-first layout the keys that a run of queries sees are the ancestors of its first token and the run itself. So
a row of T tokens whose sequences are D tokens long costs about T·(D + block) scores instead of T².
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "querylect_packed"
BLOCK = 256
"""Queries that share one gathering of keys."""


@dataclass(frozen=True, slots=True)
class Block:
    """Queries [begin, end) of a packed row and what they see."""

    begin: int
    end: int
    keys: Tensor
    """(n,) places of all keys that some query of the block sees, ascending."""
    mask: Tensor
    """(1, 1, end − begin, n) boolean: True where the query sees the key."""


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


def take_packed_rows(model: nn.Module) -> None:
    """Let `model` take the keyword `packed_blocks`; without it, attention stays PyTorch's scaled dot product.

    The setting stays, so that layers that are computed again in a backward pass attend as they did before.
    """
    config: Any = getattr(model, "module", model).config  # under the wrapper of several processes
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
    packed_blocks: Sequence[Block] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    if packed_blocks is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **others
        )
        return plain
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
        for block in packed_blocks
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


AttentionInterface.register(NAME, _forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
