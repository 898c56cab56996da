"""What both vLLM engines share: asking for the package, seeds from random streams, and reading a completion."""

import math
from collections.abc import Sequence
from importlib.util import find_spec

import torch

from ..errors import ConfigError, ModelError
from .engine import Sample


def require_vllm(engine: str) -> None:
    """Raise ConfigError where vLLM is not installed."""
    if find_spec("vllm") is None:
        raise ConfigError(
            f"rollout.engine is {engine!r} and the package vllm is not installed (it needs a CUDA GPU). Install it "
            "with: pip install 'querylect[gpu]', or take rollout.engine=transformers."
        )


def draw_seeds(prompts: int, n: int, streams: Sequence[int] = ()) -> list[int]:
    """A seed for each prompt: of its random stream where there is one (rollouts/streams.py).

    Else they come from torch's random stream on the CPU, which a checkpoint holds: a resumed run draws the same. vLLM
    gives sample j of a prompt the seed + j, so these lie `n` apart.
    """
    if streams:
        return [stream % 2**62 for stream in streams]
    start = int(torch.randint(2**62, ()).item())
    return [start + n * place for place in range(prompts)]


def make_sample(ids: Sequence[int], logprobs: Sequence[float | None], stop_ids: set[int]) -> Sample:
    """One completion of vLLM. Raises ModelError for a log-probability that is not a number."""
    values = [math.nan if value is None else value for value in logprobs]
    if any(map(math.isnan, values)):
        raise ModelError(
            "vLLM answers with numbers that are not finite: the policy's weights or its arithmetic overflowed. "
            "Take an earlier checkpoint and a lower train.learning_rate, or policy.dtype=float32."
        )
    return Sample(list(ids), values, bool(ids) and ids[-1] in stop_ids)
