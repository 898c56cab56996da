"""The engine that a config asks for, around a policy."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...configs.schema import PolicyConfig, RolloutConfig
from ..policy import load_policy, move_to, torch_dtype
from ..weights import MergedCopy, PolicyWeights
from .base import Engine, WeightSync
from .transformers import TransformersEngine, stop_ids

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from ..chat import Tokenizer


def open_engine(
    policy: PolicyConfig,
    rollout: RolloutConfig,
    seed: int,
    model: "PreTrainedModel | PeftModel",
    tokenizer: "Tokenizer",
    separate: bool = False,
) -> tuple[Engine, WeightSync]:
    """The engine of `rollout.engine`, and what keeps it at the weights of `model`: refresh it before sampling.

    `separate`: several processes will split the weights of `model`, so the engine needs its own (see MergedCopy).
    Raises ConfigError where the engine is not installed or does not fit, EngineUnavailableError for a server that does
    not answer, ModelError for a policy that transformers cannot sample with shared prefixes.
    """
    dtype = torch_dtype(policy)
    if rollout.engine == "transformers":
        sampler = MergedCopy(model, separate)
        longest = rollout.longest_sequence
        return TransformersEngine(sampler.model, tokenizer, rollout.micro_batch, longest, dtype), sampler
    stops = stop_ids(model, tokenizer)
    source = PolicyWeights(model, dtype, "cuda" if torch.cuda.is_available() else "cpu")
    if rollout.engine == "vllm":
        from .vllm import open_vllm

        vllm = open_vllm(policy, rollout, seed, tokenizer, stops, source)
        return vllm, vllm
    from .vllm_server import VllmServerEngine

    server = VllmServerEngine(rollout, tokenizer, stops, source)
    return server, server


def load_engine(
    policy: PolicyConfig,
    rollout: RolloutConfig,
    seed: int,
    checkpoint: Path | None,
    base_fingerprint: str | None = None,
) -> Engine:
    """An engine that holds the policy of a checkpoint; None is the untrained policy. Arguments as of `load_policy`."""
    model, tokenizer = load_policy(policy, checkpoint, base_fingerprint)
    if rollout.engine == "transformers":  # vLLM has its own copy on the GPU
        move_to(model, "cuda" if torch.cuda.is_available() else "cpu")
    engine, weights = open_engine(policy, rollout, seed, model, tokenizer)
    weights.refresh()
    return engine
