"""Generation by a vLLM server in a process of its own, on other processors or another node, through TRL's own client.

Every prompt is one request of `n` samples with a seed of its own, so that equal prompts differ in their samples; the
server's prefix cache computes what they share once. Weights go over NCCL, or through files from which the server
reloads them; merged, by their names in a checkpoint. The process of rank 0 sends them while no other one samples; where
ZeRO-3 or FSDP2 has split them, all processes gather them for it, layer by layer.
"""

import logging
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import torch
from accelerate import PartialState
from torch import Tensor

from ...configs.schema import RolloutConfig
from ...errors import ConfigError, EngineUnavailableError, QuerylectError, in_one_line
from ..weights import PolicyWeights, weights_in_files
from .base import Completion, Sampling
from .vllm import WorkerExtension, make_sample, require_vllm, seeds_of

if TYPE_CHECKING:
    from ..chat import Tokenizer

log = logging.getLogger(__name__)

PROMPTS_AT_A_TIME = 64
START_SECONDS = 1800.0
"""How long a server may take to start."""
EXTENSION = f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}"


class VllmServerEngine:
    """Samples from a server. `source` gives the weights that `refresh` sends."""

    def __init__(
        self, rollout: RolloutConfig, tokenizer: "Tokenizer", stop_ids: set[int], source: PolicyWeights
    ) -> None:
        """Connect. Raises ConfigError where vLLM is missing here or the server was started in another way than needed,
        EngineUnavailableError where it cannot be reached."""
        require_vllm("vllm_server")
        from trl.generation.vllm_client import VLLMClient

        self.tokenizer, self.stop_ids, self.source = tokenizer, stop_ids, source
        self.settings = settings = rollout.server
        self._folder = None if settings.weights_folder is None else Path(settings.weights_folder).expanduser()
        self._parameters: list[tuple[str, str, list[int]]] = []
        self._pool: ThreadPoolExecutor | None = None
        with self._server_errors():
            self.client = VLLMClient(
                base_url=settings.base_url, group_port=_free_port(), connection_timeout=START_SECONDS
            )
            info = self.client.get_server_info()
            log.info("%s generates with %s", settings.base_url, self.client.model)
            self._on_cpu = info["device_config"]["device"] == "cpu"
            if wrong := list(self._unsuitable(info)):
                raise ConfigError(
                    f"the vLLM server at {settings.base_url} was started in another way than this run needs: "
                    f"{'; '.join(wrong)}. Start it with `trl vllm-serve`, on a CPU as docs/rollouts.md shows."
                )
            if self._folder is None and (not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0):
                # The server is told all names and shapes before the first tensor; no weight is split yet.
                self._parameters = [
                    (name, str(weight.dtype).removeprefix("torch."), list(weight.shape)) for name, weight in source()
                ]
                self.client.init_communicator(device=transfer_device())

    def _unsuitable(self, info: dict[str, Any]) -> Iterator[str]:
        """What a server with these settings would silently do otherwise than a run needs."""
        mode, extension = info["model_config"]["logprobs_mode"], info["parallel_config"]["worker_extension_cls"]
        if mode != "processed_logprobs":
            yield f"--logprobs-mode is {mode}, expected processed_logprobs"
        if self._on_cpu and self._folder is not None and extension != EXTENSION:
            yield f"--worker-extension-cls is {extension or 'not set'}, expected {EXTENSION} on a CPU"

    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Return `n` samples per prompt in the order of the prompts. Raises EngineUnavailableError."""
        width = 1 if sampling.temperature == 0 else n  # vLLM refuses several greedy samples, which are equal

        def ask(prompt: Sequence[int], seed: int) -> list[Completion]:
            return self._ask(prompt, width, sampling, seed) * (n // width)

        with ThreadPoolExecutor(PROMPTS_AT_A_TIME) as pool:
            return list(pool.map(ask, prompts, seeds_of(sampling, len(prompts))))

    def submit(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Future[Completion]]:
        """Begin `n` samples, one request each; PROMPTS_AT_A_TIME prompts are asked at a time.

        The future of a sample raises EngineUnavailableError.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(PROMPTS_AT_A_TIME * n)

        def ask(seed: int) -> Completion:
            return self._ask(prompt, 1, sampling, seed)[0]

        (first,) = seeds_of(sampling, 1)
        return [self._pool.submit(ask, first + number) for number in range(n)]

    def advance(self) -> bool:
        """The server computes."""
        return False

    def cancel(self) -> None:
        """Drop the requests that have not been sent; the server ends the others."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _ask(self, prompt: Sequence[int], n: int, sampling: Sampling, seed: int) -> list[Completion]:
        with self._server_errors():
            answer = self.client.generate(
                [list(map(int, prompt))],
                n=n,
                temperature=sampling.temperature,
                top_p=sampling.top_p if sampling.temperature else 1.0,
                max_tokens=sampling.max_new_tokens,
                logprobs=0,
                generation_kwargs={"seed": seed, "stop_token_ids": sorted(self.stop_ids), "ignore_eos": True},
            )
            return [
                make_sample(ids, [candidates[0] for candidates in logprobs], self.stop_ids)
                for ids, logprobs in zip(answer["completion_ids"], answer["logprobs"], strict=True)
            ]

    def refresh(self) -> None:
        """Send the weights of the policy, and have the server forget what it computed with others. Collective: no
        process samples while they change."""
        meet()
        self.source.send(self._send, main_only=True)
        meet()

    def _send(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        with self._server_errors():
            if self._folder is None:
                self.client.update_named_params(self._parameters, weights)
            else:
                with weights_in_files(weights, self._folder.absolute()) as path:
                    self._call_workers("reload_weights", weights_path=str(path))
                if self._on_cpu:
                    self._call_workers("renew_output_heads")
            self.client.reset_prefix_cache()

    def _call_workers(self, method: str, **arguments: Any) -> None:
        """Call a method of the server's workers once. The client's session would ask again after a failure, and not say
        why it failed."""
        body = {"method": method, "kwargs": arguments}
        response = httpx.post(f"{self.client.base_url}/collective_rpc", json=body, timeout=None)
        if response.status_code != 200:
            raise RuntimeError(f"{method} failed with status {response.status_code}: {response.text}")

    def sleep(self) -> None:
        """A server keeps its own memory."""

    @contextmanager
    def _server_errors(self) -> Iterator[None]:
        try:
            yield
        except QuerylectError:
            raise
        except Exception as error:  # the client raises what requests, urllib3 and it itself know
            raise EngineUnavailableError(
                f"the vLLM server at {self.settings.base_url} could not be used ({in_one_line(error)}). See that it "
                "runs (`trl vllm-serve`) and can be reached from here; a run that was stopped goes on with --resume."
            ) from error


def meet() -> None:
    """Wait for all processes of the run. Collective."""
    if torch.distributed.is_initialized():
        PartialState().wait_for_everyone()


def transfer_device() -> torch.device:
    """The device over which weights leave. Raises ConfigError where there is no CUDA."""
    if not torch.cuda.is_available():
        raise ConfigError(
            "weights reach a vLLM server over NCCL, and this machine has no CUDA device. Train on a GPU, or set "
            "rollout.server.weights_folder to a folder that the server sees, too, such as /dev/shm."
        )
    return torch.device("cuda", torch.cuda.current_device())


def _free_port() -> int:
    """A port of this machine over which the weights are transferred."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
