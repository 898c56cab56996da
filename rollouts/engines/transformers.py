"""Generation with a transformers model: common prefixes once, every distinct prompt once, samples side by side.

Simplifications against a serving engine: prompts of a micro-batch are padded on the right to the longest, and finished
rows are dropped from the grid only when that shrinks it. With a random stream per prompt (`Sampling.streams`) a sample
depends on its prompt and its number under it alone; without, sampling draws from torch's global stream.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...errors import ModelError
from ..random_streams import below, uniforms
from ..sequences import common_length
from ..tokenizer import Tokenizer
from .base import Completion, Sampling
from .shared_prefix import obstacle
from .tree_attention import TreeCache, tree_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TransformersEngine:
    """Samples from a causal language model that is held in this process, possibly under training.

    `compute_dtype`: bfloat16 computes float32 weights under autocast, as the trainer does; None is that of the weights.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: Tokenizer,
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
        sampled: dict[int, list[Completion]] = {}
        was_training = self.model.training
        self.model.eval()
        try:
            with tree_attention(self.model), self._autocast():
                for batch in batches:
                    streams = [sampling.streams[index] for index in batch] if sampling.streams else None
                    samples = self._batch([tuple(prompts[index]) for index in batch], n, sampling, streams)
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
        self, grid: list[tuple[int, ...]], slots: int, sampling: Sampling, streams: list[int] | None
    ) -> list[list[Completion]]:
        device = next(self.model.parameters()).device
        row_of = {prompt: row for row, prompt in enumerate(dict.fromkeys(grid))}
        prompts, order = list(row_of), torch.tensor([row_of[prompt] for prompt in grid], device=device)
        layers = int(self.model.config.get_text_config().num_hidden_layers)
        cache = TreeCache(layers, len(prompts), slots, sampling.max_new_tokens)
        shared = min(common_length(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
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
        sample_streams = below(torch.tensor(streams, device=device), slots).view(-1) if streams is not None else None
        return self._decode(hidden[rows], (lengths + shared)[rows], cache, sampling, sample_streams)

    def _decode(
        self, hidden: Tensor, positions: Tensor, cache: TreeCache, sampling: Sampling, streams: Tensor | None
    ) -> list[list[Completion]]:
        """Sample until every row has stopped.

        hidden: (rows, width) of the last prompt token; positions: (rows,); streams: (rows,) or None.
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
            uniform = uniforms(streams, step)[:, None] if streams is not None else None
            logits = self._logits(hidden)
            if step == 0 and sampling.first:
                first = _likeliest(logits, sampling.first)
            token, logprob = _sample(logits, sampling, uniform)
            ids[rows, step], logprobs[rows, step] = token, logprob
            lengths[rows] += alive
            alive = alive & ~torch.isin(token, stop)
            per_prompt = alive.view(cache.prompts, cache.slots).sum(1)
            state = torch.stack([(per_prompt > 0).sum(), per_prompt.max(), logprob.isnan().sum()])
            live_prompts, width, broken = state.tolist()  # waits for a GPU once a token
            if broken:
                raise _not_finite()
            if step + 1 == longest or not live_prompts:
                break
            if live_prompts * width <= 0.9 * cache.prompts * cache.slots:
                retained = _shrink(alive, cache, live_prompts, width)
                rows, alive, token, positions = (tensor[retained] for tensor in (rows, alive, token, positions))
                streams = streams[retained] if streams is not None else None
            hidden = self._hidden(token[:, None], positions[:, None], cache)[:, 0]
            cache.length += 1
            positions = positions + 1
        ended = self.stop_ids
        sampled = zip(lengths.tolist(), ids.tolist(), logprobs.tolist(), first, strict=True)
        samples = [Completion(i[:n], lp[:n], n > 0 and i[n - 1] in ended, f) for n, i, lp, f in sampled]
        return [samples[p * slots : (p + 1) * slots] for p in range(prompts)]

    def _hidden(self, ids: Tensor, positions: int | Tensor, cache: TreeCache) -> Tensor:
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
        model = self.model
        prompts = [[3, 1, 4], [3, 1, 5, 9]]
        problem = ""
        was_training = model.training
        model.eval()
        try:
            sampled = self.generate(prompts, 1, Sampling(temperature=0.0, max_new_tokens=3))
        except (TypeError, AttributeError) as error:
            problem = f"it does not take shared attention ({error})"
        else:
            largest = 0.0
            for prompt, (sample,) in zip(prompts, sampled, strict=True):
                ids = torch.tensor([[*prompt, *sample.ids]], device=next(model.parameters()).device)
                with self._autocast():
                    logits = model(input_ids=ids, use_cache=False).logits
                plain = torch.log_softmax(logits[0].float(), -1)
                expected = plain[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0].cpu()
                largest = max(largest, float((expected - torch.tensor(sample.logprobs)).abs().max()))
            if largest > (0.01 if (self.compute_dtype or model.dtype) == torch.float32 else 1.0):
                problem = f"log-probabilities differ by {largest:.3g} from its plain forward pass"
        finally:
            model.train(was_training)
        if problem:
            raise ModelError(
                f"policy {getattr(model.config, 'model_type', '?')!r} cannot generate with shared prefixes: {problem}. "
                "Choose a policy whose architecture is a plain decoder (Llama, SmolLM2, Qwen2, Qwen3, …)."
            )


def _sample(logits: Tensor, sampling: Sampling, uniform: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One token per row (rows, vocabulary) → ids (rows,) and the log-probabilities with which they were drawn.

    uniform: (rows, 1) random numbers in [0, 1); None draws them here.
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
    token = _draw(nucleus, uniform=uniform)
    drawn = nucleus.gather(-1, token[:, None])[:, 0]
    return token, (drawn if sampling.top_p == 1 else drawn / nucleus.sum(-1)).log()


def _likeliest(logits: Tensor, count: int) -> list[dict[int, float]]:
    """The `count` likeliest ids of each row with their log-probabilities, the likeliest first."""
    best = torch.log_softmax(logits, -1, dtype=torch.float32).topk(count)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [dict(zip(ids, values, strict=True)) for ids, values in rows]


def _not_finite() -> ModelError:
    return ModelError(
        "the policy answers with numbers that are not finite: its weights or its arithmetic overflowed. "
        "Start a new run from an earlier checkpoint, with a lower train.learning_rate or policy.dtype=float32."
    )


def _draw(weights: Tensor, block: int = 256, uniform: Tensor | None = None) -> Tensor:
    """Draw one column per row (rows, columns) in proportion to its weight, by inverse transform.

    One random number per row picks a block of columns and then the column in it, so that the weights are read once;
    torch.multinomial would draw a random number per entry, which takes longer than the model on a CPU.
    """
    rows, columns = weights.shape
    weights = torch.nn.functional.pad(weights, (0, -columns % block)).view(rows, -1, block)
    by_block = weights.sum(-1).cumsum(-1)
    uniform = torch.rand(rows, 1, device=weights.device) if uniform is None else uniform
    drawn = uniform * by_block[:, -1:]
    chosen = torch.searchsorted(by_block, drawn, right=True).clamp_max(by_block.shape[1] - 1)
    start = torch.where(chosen > 0, by_block.gather(1, (chosen - 1).clamp_min(0)), 0.0)
    inside = weights.gather(1, chosen[:, :, None].expand(-1, -1, block))[:, 0]
    within = torch.searchsorted(inside.cumsum(-1), drawn - start, right=True)
    # Rounding may point past the last column of the block that has any weight: take that one.
    last = block - 1 - (inside > 0).flip(-1).int().argmax(-1, keepdim=True)
    return (chosen * block + torch.minimum(within, last))[:, 0].clamp_max(columns - 1)  # weights may be NaN


def _shrink(alive: Tensor, cache: TreeCache, prompts: int, width: int) -> Tensor:
    """Drop finished prompts and slots from the grid, down to `prompts × width`, and return the kept rows.

    The grid stays rectangular: prompts with fewer live rows than others keep some finished ones.
    """
    grid = alive.view(cache.prompts, cache.slots)
    live = grid.any(1).int().argsort(descending=True, stable=True)[:prompts].sort().values
    slots = grid[live].int().argsort(dim=1, descending=True, stable=True)[:, :width]
    rows = (live[:, None] * cache.slots + slots).reshape(-1)
    cache.keep(live, slots)
    return rows


def stop_ids(model: nn.Module, tokenizer: Tokenizer) -> set[int]:
    """Ids that end a turn: those of the generation config and of the tokenizer."""
    ids: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for value in (getattr(generation, "eos_token_id", None), tokenizer.eos_token_id):
        ids.update([value] if isinstance(value, int) else value or ())
    if not ids:
        raise ModelError("the model names no end-of-turn token; set eos_token_id in its tokenizer or generation config")
    return ids


def refuse_special_attention(model: "PreTrainedModel", longest: int | None = None) -> None:
    """Raise ModelError where shared prefixes would be wrong for sequences of `longest` tokens (None: any length)."""
    config = model.config.get_text_config()
    reason = obstacle(config, longest)
    if reason:
        raise ModelError(
            f"policy {getattr(config, 'model_type', '?')!r} uses {reason}, which trees with shared prefixes cannot "
            "reproduce. Choose a policy with full attention in every layer (Llama, SmolLM2, Qwen2, Qwen3, …)."
        )
