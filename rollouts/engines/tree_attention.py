"""Attention for decoding many samples of few prompts: every shared token is kept, and read, once.

Three levels of keys and values hold what a decoding step attends to:

- *prefix*: the ids that all prompts of the batch begin with (a system text, few-shot examples), stored once;
- *prompt*: the rest of each distinct prompt, stored once per prompt, not once per sample;
- *sample*: the ids sampled so far, stored per sample.

The rows of a batch form a grid of `prompts × slots`; a slot is one sample of its prompt. Scores of the three levels are
joined before the softmax, so the result is ordinary attention (equal up to floating-point order). The cache is handed
to the model as the keyword `tree_cache`, which transformers passes on to the registered attention function.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

NAME = "querylect_tree"


class TreeCache:
    """Keys and values of one generation batch, filled in the order prefix → prompts → samples."""

    def __init__(self, layers: int, prompts: int, slots: int, max_new_tokens: int) -> None:
        self.prompts, self.slots, self.capacity = prompts, slots, max_new_tokens
        self.stage = "prefix"
        self.length = 0
        """Sampled tokens held per row."""
        self.pad_mask: Tensor | None = None
        """(prompts, 1, 1, width) boolean: True where a prompt is shorter than the widest one."""
        self.prefix: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self.prompt: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self.sample: list[tuple[Tensor, Tensor] | None] = [None] * layers

    def begin_prompts(self, lengths: Tensor) -> None:
        """Announce the prompts' own tokens; `lengths` (prompts,) counts those of each, padded on the right."""
        self.stage = "prompt"
        width = int(lengths.max())
        columns = torch.arange(width, device=lengths.device)
        self.pad_mask = (columns[None, :] >= lengths[:, None])[:, None, None, :]

    def begin_samples(self, order: Tensor) -> None:
        """From now on each call brings one token per row; prompt i of the grid is the prefilled prompt `order[i]`."""
        self.stage = "sample"
        self.prompts = len(order)
        self._select(order)

    def keep(self, prompts: Tensor, slots: Tensor) -> None:
        """Drop rows: keep prompts (p,) and of each the slots (p, s); indices into the present grid."""
        rows = (prompts[:, None] * self.slots + slots).reshape(-1)
        self._select(prompts)
        for layer, pair in enumerate(self.sample):
            if pair is not None:
                self.sample[layer] = (pair[0][rows], pair[1][rows])
        self.prompts, self.slots = len(prompts), slots.shape[1]

    def _select(self, prompts: Tensor) -> None:
        if self.pad_mask is not None:
            self.pad_mask = self.pad_mask[prompts]
        for layer, pair in enumerate(self.prompt):
            if pair is not None:
                self.prompt[layer] = (pair[0][prompts], pair[1][prompts])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Store new keys and values and attend: queries (rows, heads, tokens, dim) → (rows, tokens, heads, dim)."""
        query, key = query.to(value.dtype), key.to(value.dtype)  # rotary positions under autocast leave them in float32
        if self.stage == "prefix":
            self.prefix[layer] = (key, value)
            return _sdpa(query, key, value, scaling, mask=None, causal=query.shape[2] > 1)
        if self.stage == "prompt":
            return self._attend_prompt(layer, query, key, value, scaling)
        return self._attend_sample(layer, query, key, value, scaling)

    def _attend_prompt(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.prompt[layer] = (key, value)
        rows, _, width, _ = query.shape
        prefix_length = 0
        prefix = self.prefix[layer]
        if prefix is not None:
            prefix_length = prefix[0].shape[2]
            key = torch.cat([prefix[0].expand(rows, -1, -1, -1), key], dim=2)
            value = torch.cat([prefix[1].expand(rows, -1, -1, -1), value], dim=2)
        mask = torch.ones(width, prefix_length + width, dtype=torch.bool, device=query.device).tril(
            diagonal=prefix_length
        )
        return _sdpa(query, key, value, scaling, mask=mask, causal=False)

    def _attend_sample(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        rows, heads, _, dim = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        cached = self.sample[layer]
        if cached is None:
            cached = (
                key.new_empty(rows, kv_heads, self.capacity, dim),
                key.new_empty(rows, kv_heads, self.capacity, dim),
            )
            self.sample[layer] = cached
        position = self.length
        cached[0][:, :, position] = key[:, :, 0]
        cached[1][:, :, position] = value[:, :, 0]
        sample_key, sample_value = cached[0][:, :, : position + 1], cached[1][:, :, : position + 1]

        query = query.reshape(rows, kv_heads, group, dim) * scaling
        by_prompt = query.view(self.prompts, self.slots, kv_heads, group, dim).transpose(1, 2)
        by_prompt = by_prompt.reshape(self.prompts, kv_heads, self.slots * group, dim)
        scores: list[Tensor] = []
        prefix, prompt = self.prefix[layer], self.prompt[layer]
        if prefix is not None:
            by_head = query.transpose(0, 1).reshape(kv_heads, rows * group, dim)
            part = by_head @ prefix[0][0].transpose(-1, -2)
            scores.append(part.view(kv_heads, rows, group, -1).transpose(0, 1))
        if prompt is not None:
            assert self.pad_mask is not None
            part = (by_prompt @ prompt[0].transpose(-1, -2)).masked_fill(self.pad_mask, float("-inf"))
            scores.append(self._by_row(part, kv_heads, group))
        scores.append(query @ sample_key.transpose(-1, -2))
        widths = [part.shape[-1] for part in scores]
        weights = torch.softmax(torch.cat(scores, dim=-1).float(), dim=-1).to(value.dtype)
        parts = list(weights.split(widths, dim=-1))

        out = parts.pop() @ sample_value
        if prompt is not None:
            part = parts.pop().view(self.prompts, self.slots, kv_heads, group, -1).transpose(1, 2)
            part = part.reshape(self.prompts, kv_heads, self.slots * group, -1) @ prompt[1]
            out = out + self._by_row(part, kv_heads, group)
        if prefix is not None:
            part = parts.pop().transpose(0, 1).reshape(kv_heads, rows * group, -1) @ prefix[1][0]
            out = out + part.view(kv_heads, rows, group, dim).transpose(0, 1)
        return out.reshape(rows, 1, heads, dim)  # type: ignore[no-any-return]

    def _by_row(self, part: Tensor, kv_heads: int, group: int) -> Tensor:
        """(prompts, kv_heads, slots·group, x) → (rows, kv_heads, group, x)."""
        part = part.view(self.prompts, kv_heads, self.slots, group, -1).transpose(1, 2)
        return part.reshape(self.prompts * self.slots, kv_heads, group, -1)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, scaling: float, mask: Tensor | None, causal: bool) -> Tensor:
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    out: Tensor = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scaling
    )
    return out.transpose(1, 2)


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    tree_cache: TreeCache | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    if tree_cache is None:
        raise TypeError(f"attention {NAME!r} was called without tree_cache; the model does not pass keywords on")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return tree_cache.attend(int(module.layer_idx), query, key, value, scaling), None  # type: ignore[arg-type]


AttentionInterface.register(NAME, _forward)


@contextmanager
def tree_attention(model: PreTrainedModel) -> Iterator[None]:
    """Run `model` with tree attention inside the block and with its own attention after it."""
    config = model.config
    previous = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = previous
