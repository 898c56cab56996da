"""Generation with a transformers model: common prefixes once, every distinct prompt once, samples side by side.

The rows of a batch form a grid of `prompts × slots`; a slot is one sample of its prompt. What a row attends to has
three levels, each stored and read once: the ids that all prompts begin with, the rest of each distinct prompt, and the
ids sampled in the row. Their scores are joined before the softmax, so the result is ordinary attention (equal up to
floating-point order).

Simplifications against a serving engine: prompts of a micro-batch are padded on the right to the longest, and finished
rows are dropped from the grid only when that shrinks it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ...errors import ModelError
from .base import Completion, Sampling, not_finite, stream

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from ..chat import Tokenizer

_ATTENTION = "querylect_tree"
_GOLDEN = -0x61C8864680B583EB
"""2⁶⁴ / φ as a signed number: the step between the states of a stream."""

_Pairs = list[tuple[Tensor, Tensor] | None]
"""Keys and values of each layer."""


class TransformersEngine:
    """Samples from a causal language model that is held in this process, possibly under training.

    `compute_dtype`: bfloat16 computes float32 weights under autocast, as the trainer does; None is that of the weights.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "Tokenizer",
        micro_batch: int = 256,
        longest: int | None = None,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        self.model, self.tokenizer, self.micro_batch = model, tokenizer, micro_batch
        self.compute_dtype = compute_dtype
        self.stop_ids = stop_ids(model, tokenizer)
        refuse_special_attention(model, longest)
        self._compare_with_plain_forward()

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Return `n` samples per prompt in the order of the prompts; equal prompts are prefilled once."""
        copies: dict[tuple[int, ...], list[int]] = {}
        for index, prompt in enumerate(prompts):
            copies.setdefault(tuple(prompt), []).append(index)
        # prompts of like length in one batch, so that little is padded
        batches: list[list[int]] = []
        for indices in sorted(copies.values(), key=lambda indices: len(prompts[indices[0]])):
            if not batches or (len(batches[-1]) + len(indices)) * n > self.micro_batch:
                batches.append([])
            batches[-1] += indices
        streams, sampled = sampling.streams or list(map(stream, range(len(prompts)))), dict[int, list[Completion]]()
        was_training = self.model.training
        self.model.eval()
        try:
            with _tree_attention(self.model), self._autocast():
                for batch in batches:
                    grid = [tuple(prompts[index]) for index in batch]
                    samples = self._batch(grid, n, sampling, [streams[index] for index in batch])
                    sampled |= zip(batch, samples, strict=True)
        finally:
            self.model.train(was_training)
        return [sampled[index] for index in range(len(prompts))]

    def _autocast(self) -> torch.autocast:
        """Bfloat16 arithmetic on float32 weights, each cast once while the block runs; else nothing."""
        weight = next(self.model.parameters())
        mixed = self.compute_dtype == torch.bfloat16 and weight.dtype == torch.float32
        return torch.autocast(weight.device.type, torch.bfloat16, enabled=mixed)

    def _batch(
        self, grid: list[tuple[int, ...]], slots: int, sampling: Sampling, streams: list[int]
    ) -> list[list[Completion]]:
        """`slots` samples of each prompt of `grid`, with its random stream."""
        device = next(self.model.parameters()).device
        row_of = {prompt: row for row, prompt in enumerate(dict.fromkeys(grid))}
        prompts, order = list(row_of), torch.tensor([row_of[prompt] for prompt in grid], device=device)
        layers = int(self.model.config.get_text_config().num_hidden_layers)
        cache = _TreeCache(layers, len(prompts), slots, sampling.max_new_tokens)
        common = takewhile(lambda pair: pair[0] == pair[1], zip(min(prompts), max(prompts), strict=False))
        shared = min(len(list(common)), min(map(len, prompts)) - 1)
        if shared:
            self._hidden(torch.tensor([prompts[0][:shared]], device=device), 0, cache)
        lengths = torch.tensor([len(prompt) - shared for prompt in prompts], device=device)
        suffixes = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long, device=device)
        for row, prompt in enumerate(prompts):
            suffixes[row, : len(prompt) - shared] = torch.tensor(prompt[shared:], device=device)
        cache.begin_prompts(lengths)
        hidden = self._hidden(suffixes, shared, cache)
        hidden = hidden[torch.arange(len(prompts), device=device), lengths - 1]
        cache.begin_samples(order)
        rows = order.repeat_interleave(slots)
        # greedy decoding needs no random numbers
        count = sampling.max_new_tokens if sampling.temperature else 0
        numbers = uniforms(torch.tensor(streams, device=device), slots, count)
        return self._decode(hidden[rows], (lengths + shared)[rows], cache, sampling, numbers)

    def _decode(
        self, hidden: Tensor, positions: Tensor, cache: "_TreeCache", sampling: Sampling, numbers: Tensor
    ) -> list[list[Completion]]:
        """Sample until every row has stopped.

        hidden: (rows, width) of the last prompt token; positions: (rows,); numbers: (rows, tokens) in [0, 1).
        """
        prompts, slots, longest = cache.prompts, cache.slots, sampling.max_new_tokens
        device, count = hidden.device, cache.prompts * cache.slots
        stop = torch.tensor(sorted(self.stop_ids), device=device)
        ids = torch.zeros(count, longest, dtype=torch.long, device=device)
        logprobs = torch.zeros(count, longest, device=device)
        lengths = torch.zeros(count, dtype=torch.long, device=device)
        first: list[dict[int, float]] = [{}] * count
        rows = torch.arange(count, device=device)
        alive = torch.ones(count, dtype=torch.bool, device=device)
        for step in range(longest):
            logits = self._logits(hidden)
            if step == 0 and sampling.first:
                first = _likeliest(logits, sampling.first)
            token, logprob = _sample(logits, sampling, numbers[rows, step : step + 1])
            ids[rows, step], logprobs[rows, step] = token, logprob
            lengths[rows] += alive
            alive = alive & ~torch.isin(token, stop)
            per_prompt = alive.view(cache.prompts, cache.slots).sum(1)
            state = torch.stack([(per_prompt > 0).sum(), per_prompt.max(), logprob.isnan().sum()])
            live_prompts, width, broken = state.tolist()  # waits for a GPU once a token
            if broken:
                raise not_finite("the policy")
            if step + 1 == longest or not live_prompts:
                break
            if live_prompts * width <= 0.9 * cache.prompts * cache.slots:
                retained = cache.shrink(alive, live_prompts, width)
                rows, alive, token, positions = (tensor[retained] for tensor in (rows, alive, token, positions))
            hidden = self._hidden(token[:, None], positions[:, None], cache)[:, 0]
            cache.length += 1
            positions = positions + 1
        ended = self.stop_ids
        sampled = zip(lengths.tolist(), ids.tolist(), logprobs.tolist(), first, strict=True)
        samples = [Completion(i[:n], lp[:n], n > 0 and i[n - 1] in ended, f) for n, i, lp, f in sampled]
        return [samples[p * slots : (p + 1) * slots] for p in range(prompts)]

    def _hidden(self, ids: Tensor, positions: int | Tensor, cache: "_TreeCache") -> Tensor:
        """Last hidden states (rows, tokens, width) of `ids` that start at `positions`."""
        if isinstance(positions, int):
            positions = (positions + torch.arange(ids.shape[1], device=ids.device)).expand(ids.shape[0], -1)
        adapted: Callable[[], PreTrainedModel] | None = getattr(self.model, "get_base_model", None)
        causal = self.model if adapted is None else adapted()
        decoder = causal.get_decoder()  # adapters of peft sit inside it
        out = decoder(input_ids=ids, position_ids=positions, use_cache=False, tree_cache=cache)
        return out.last_hidden_state  # type: ignore[no-any-return]

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def _compare_with_plain_forward(self) -> None:
        """Raise ModelError where generation would not follow the model's own forward pass.

        Architectures differ in ways that no list of settings covers (scaled logits, attention sinks, attention of their
        own); two short prompts show them at once.
        """
        model, problem = self.model, ""
        prompts = [[3, 1, 4], [3, 1, 5, 9]]
        was_training = model.training
        model.eval()
        try:
            sampled = self.generate(prompts, 1, Sampling(temperature=0.0, max_new_tokens=3))
            for prompt, (sample,) in zip(prompts, sampled, strict=True):
                ids = torch.tensor([[*prompt, *sample.ids]], device=next(model.parameters()).device)
                with self._autocast():
                    logits = model(input_ids=ids, use_cache=False).logits
                plain = torch.log_softmax(logits[0].float(), -1)
                expected = plain[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0].cpu()
                difference = float((expected - torch.tensor(sample.logprobs)).abs().max())
                if difference > (0.01 if (self.compute_dtype or model.dtype) == torch.float32 else 1.0):
                    problem = f"log-probabilities differ by {difference:.3g} from its plain forward pass"
        except (TypeError, AttributeError) as error:
            problem = f"it does not take shared attention ({error})"
        finally:
            model.train(was_training)
        if problem:
            raise ModelError(
                f"policy {getattr(model.config, 'model_type', '?')!r} cannot generate with shared prefixes: {problem}. "
                "Choose a policy whose architecture is a plain decoder (Llama, SmolLM2, Qwen2, Qwen3, …)."
            )


def _sample(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row (rows, vocabulary) → ids (rows,) and the log-probabilities with which they were drawn.

    uniform: (rows, 1) random numbers in [0, 1); greedy decoding takes none.
    """
    if sampling.temperature == 0:
        token = logits.argmax(-1)
        return token, torch.log_softmax(logits, -1, dtype=torch.float32).gather(-1, token[:, None])[:, 0]
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    probabilities = nucleus = torch.softmax(logits, -1, dtype=torch.float32)
    if sampling.top_p < 1:
        ranked, order = probabilities.sort(-1, descending=True)
        ranked[ranked.cumsum(-1) - ranked >= sampling.top_p] = 0
        nucleus = torch.zeros_like(probabilities).scatter(-1, order, ranked)
    token = _draw(nucleus, uniform)
    drawn = nucleus.gather(-1, token[:, None])[:, 0]
    return token, (drawn if sampling.top_p == 1 else drawn / nucleus.sum(-1)).log()


def uniforms(streams: Tensor, slots: int, count: int) -> Tensor:
    """The first `count` numbers of each of the `slots` streams under each of `streams` (n,), int64.

    (n · slots, count) float32 in [0, 1) with 24 random bits; those of one of `streams` lie together.
    """

    def steps(number: int) -> Tensor:
        return torch.arange(1, number + 1, device=streams.device) * _GOLDEN

    below = _mixed(_mixed(streams)[:, None] + steps(slots)).view(-1)
    return ((_mixed(below[:, None] + steps(count)) >> 40) & 0xFFFFFF).float() * 2.0**-24


def _mixed(state: Tensor) -> Tensor:
    """The finaliser of splitmix64 on signed numbers; products wrap around, shifts fill with zeros."""
    for bits, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        state = (state ^ ((state >> bits) & ((1 << (64 - bits)) - 1))) * factor
    return state


def _draw(weights: Tensor, uniform: Tensor, block: int = 256) -> Tensor:
    """Draw one column per row (rows, columns) in proportion to its weight, by inverse transform of uniform (rows, 1).

    One random number per row picks a block of columns and then the column in it, so that the weights are read once;
    torch.multinomial would draw a random number per entry, which takes longer than the model on a CPU.
    """
    columns = weights.shape[1]
    weights = nn.functional.pad(weights, (0, -columns % block)).view(len(weights), -1, block)
    by_block = weights.sum(-1).cumsum(-1)
    drawn = uniform * by_block[:, -1:]
    chosen = torch.searchsorted(by_block, drawn, right=True).clamp_max(by_block.shape[1] - 1)
    start = torch.where(chosen > 0, by_block.gather(1, (chosen - 1).clamp_min(0)), 0.0)
    inside = weights.gather(1, chosen[:, :, None].expand(-1, -1, block))[:, 0]
    within = torch.searchsorted(inside.cumsum(-1), drawn - start, right=True)
    # Rounding may point past the last column of the block that has any weight: take that one.
    last = block - 1 - (inside > 0).flip(-1).int().argmax(-1, keepdim=True)
    return (chosen * block + torch.minimum(within, last))[:, 0].clamp_max(columns - 1)  # weights may be NaN


def _likeliest(logits: Tensor, count: int) -> list[dict[int, float]]:
    """The `count` likeliest ids of each row with their log-probabilities, the likeliest first."""
    best = torch.log_softmax(logits, -1, dtype=torch.float32).topk(count)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [dict(zip(ids, values, strict=True)) for ids, values in rows]


def stop_ids(model: nn.Module, tokenizer: "Tokenizer") -> set[int]:
    """Ids that end a turn: those of the generation config and of the tokenizer."""
    ids: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for value in (getattr(generation, "eos_token_id", None), tokenizer.eos_token_id):
        ids.update([value] if isinstance(value, int) else value or ())
    if not ids:
        raise ModelError("the model names no end-of-turn token; set eos_token_id in its tokenizer or generation config")
    return ids


def obstacle(config: "PreTrainedConfig", longest: int | None = None) -> str:
    """Why a policy of this text config cannot share prefixes, for sampling or training; "" where nothing in it speaks
    against it. Each attention score may depend on two tokens and their distance, and on nothing else in the row.

    A window is in the way only where a sequence of `longest` tokens reaches past it; None asks for any length.
    """
    kinds = set(getattr(config, "layer_types", None) or [])
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    limits = {"sliding_attention": window, "chunked_attention": chunk}
    limited = [(f"layers of kind {kind} that see", size) for kind, size in limits.items() if kind in kinds]
    if not kinds and window and getattr(config, "use_sliding_window", True):
        limited.append(("a sliding window of", window))
    for what, size in limited:
        if longest is None or size is None or longest > size:
            return f"{what} {size} tokens" + ("" if longest is None else f", and a sequence may have {longest}")
    if unsupported := kinds - {"full_attention", *limits}:
        return f"layers of kind {', '.join(sorted(unsupported))}"
    if getattr(config, "attn_logit_softcapping", None):
        return "soft-capped attention scores"
    if getattr(config, "alibi", False) or getattr(getattr(config, "attn_config", None), "alibi", False):
        return "ALiBi position biases"
    return ""


def refuse_special_attention(model: "PreTrainedModel", longest: int | None = None) -> None:
    """Raise ModelError where shared prefixes would be wrong for sequences of `longest` tokens (None: any length)."""
    config = model.config.get_text_config()
    if reason := obstacle(config, longest):
        raise ModelError(
            f"policy {getattr(config, 'model_type', '?')!r} uses {reason}, which trees with shared prefixes cannot "
            "reproduce. Choose a policy with full attention in every layer (Llama, SmolLM2, Qwen2, Qwen3, …)."
        )


class _TreeCache:
    """Keys and values of one generation batch, filled in the order prefix → prompts → samples.

    It is handed to the model as the keyword `tree_cache`, which transformers passes on to the attention function.
    """

    def __init__(self, layers: int, prompts: int, slots: int, max_new_tokens: int) -> None:
        self.prompts, self.slots, self.capacity = prompts, slots, max_new_tokens
        self.stage = "prefix"
        self.length = 0
        """Sampled tokens held per row."""
        self.pad_mask: Tensor | None = None
        """(prompts, 1, 1, width) boolean: True where a prompt is shorter than the widest one."""
        self.prefix: _Pairs = [None] * layers
        self.prompt: _Pairs = [None] * layers
        self.sample: _Pairs = [None] * layers

    def begin_prompts(self, lengths: Tensor) -> None:
        """Announce the prompts' own tokens; `lengths` (prompts,) counts those of each, padded on the right."""
        self.stage = "prompt"
        columns = torch.arange(int(lengths.max()), device=lengths.device)
        self.pad_mask = (columns[None, :] >= lengths[:, None])[:, None, None, :]

    def begin_samples(self, order: Tensor) -> None:
        """From now on each call brings one token per row; prompt i of the grid is the prefilled prompt `order[i]`."""
        self.stage = "sample"
        self._select(order, self.slots)

    def shrink(self, alive: Tensor, prompts: int, width: int) -> Tensor:
        """Drop finished prompts and slots from the grid, down to `prompts × width`, and return the kept rows.

        The grid stays rectangular: prompts with fewer live rows than others keep some finished ones.
        """
        grid = alive.view(self.prompts, self.slots)
        live = grid.any(1).int().argsort(descending=True, stable=True)[:prompts].sort().values
        slots = grid[live].int().argsort(dim=1, descending=True, stable=True)[:, :width]
        rows = (live[:, None] * self.slots + slots).reshape(-1)
        self.sample = [pair and (pair[0][rows], pair[1][rows]) for pair in self.sample]
        self._select(live, width)
        return rows

    def _select(self, prompts: Tensor, slots: int) -> None:
        self.prompts, self.slots = len(prompts), slots
        if self.pad_mask is not None:
            self.pad_mask = self.pad_mask[prompts]
        self.prompt = [pair and (pair[0][prompts], pair[1][prompts]) for pair in self.prompt]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Store new keys and values and attend: queries (rows, heads, tokens, dim) → (rows, tokens, heads, dim)."""
        query, key = query.to(value.dtype), key.to(value.dtype)  # rotary positions under autocast leave them in float32
        if self.stage == "sample":
            return self._attend_sample(layer, query, key, value, scaling)
        rows, heads, width, _ = query.shape
        mask = None
        if self.stage == "prefix":
            self.prefix[layer] = (key, value)
        else:
            self.prompt[layer] = (key, value)
            if prefix := self.prefix[layer]:
                key, value = (
                    torch.cat([shared.expand(rows, -1, -1, -1), suffix], dim=2)
                    for shared, suffix in zip(prefix, (key, value), strict=True)
                )
            mask = torch.ones(width, key.shape[2], dtype=torch.bool, device=query.device)
            mask = mask.tril(diagonal=key.shape[2] - width)
        key, value = (part.repeat_interleave(heads // key.shape[1], dim=1) for part in (key, value))
        out: Tensor = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None and width > 1, scale=scaling
        )
        return out.transpose(1, 2)

    def _attend_sample(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        rows, heads, _, dim = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        if self.sample[layer] is None:
            size = (rows, kv_heads, self.capacity, dim)
            self.sample[layer] = (key.new_empty(size), key.new_empty(size))
        cached = self.sample[layer]
        assert cached is not None
        position = self.length
        cached[0][:, :, position], cached[1][:, :, position] = key[:, :, 0], value[:, :, 0]
        sample_key, sample_value = cached[0][:, :, : position + 1], cached[1][:, :, : position + 1]

        query = query.reshape(rows, kv_heads, group, dim) * scaling
        scores: list[Tensor] = []
        prefix, prompt = self.prefix[layer], self.prompt[layer]
        if prefix is not None:
            by_head = query.transpose(0, 1).reshape(kv_heads, rows * group, dim)
            part = by_head @ prefix[0][0].transpose(-1, -2)
            scores.append(part.view(kv_heads, rows, group, -1).transpose(0, 1))
        if prompt is not None:
            assert self.pad_mask is not None
            part = self._by_prompt(query) @ prompt[0].transpose(-1, -2)
            scores.append(self._by_row(part.masked_fill(self.pad_mask, float("-inf")), kv_heads, group))
        scores.append(query @ sample_key.transpose(-1, -2))
        widths = [part.shape[-1] for part in scores]
        weights = torch.softmax(torch.cat(scores, dim=-1).float(), dim=-1).to(value.dtype)
        parts = list(weights.split(widths, dim=-1))

        out = parts.pop() @ sample_value
        if prompt is not None:
            out = out + self._by_row(self._by_prompt(parts.pop()) @ prompt[1], kv_heads, group)
        if prefix is not None:
            part = parts.pop().transpose(0, 1).reshape(kv_heads, rows * group, -1) @ prefix[1][0]
            out = out + part.view(kv_heads, rows, group, dim).transpose(0, 1)
        return out.reshape(rows, 1, heads, dim)  # type: ignore[no-any-return]

    def _by_prompt(self, part: Tensor) -> Tensor:
        """(rows, kv_heads, group, x) → (prompts, kv_heads, slots·group, x)."""
        _, kv_heads, group, width = part.shape
        part = part.view(self.prompts, self.slots, kv_heads, group, width).transpose(1, 2)
        return part.reshape(self.prompts, kv_heads, self.slots * group, width)

    def _by_row(self, part: Tensor, kv_heads: int, group: int) -> Tensor:
        """(prompts, kv_heads, slots·group, x) → (rows, kv_heads, group, x)."""
        part = part.view(self.prompts, kv_heads, self.slots, group, -1).transpose(1, 2)
        return part.reshape(self.prompts * self.slots, kv_heads, group, -1)


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    tree_cache: _TreeCache | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    if tree_cache is None:
        raise TypeError(f"attention {_ATTENTION!r} was called without tree_cache; the model does not pass keywords on")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return tree_cache.attend(int(module.layer_idx), query, key, value, scaling), None  # type: ignore[arg-type]


AttentionInterface.register(_ATTENTION, _forward)


@contextmanager
def _tree_attention(model: "PreTrainedModel") -> Iterator[None]:
    """Run `model` with tree attention inside the block and with its own attention after it."""
    config = model.config
    previous = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = previous
