"""Settings that follow from the size of a loaded policy."""

import logging
from typing import TYPE_CHECKING, Literal

import torch

from ...configs.schema import PolicyConfig, RolloutConfig, TrainConfig
from ...rollouts.policy import torch_dtype
from ..sharding import uses_fsdp, zero_stage
from .estimate import GIB, MemoryPlanner, ProcessLayout
from .model_shape import from_config

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)


def resolve_gradient_checkpointing(
    policy: PolicyConfig,
    rollout: RolloutConfig,
    train: TrainConfig,
    model: "PreTrainedModel | PeftModel",
    device: torch.device,
    processes: int,
) -> bool:
    """`train.gradient_checkpointing` with `auto` resolved to true or false, by the estimate for this policy."""
    setting = train.gradient_checkpointing
    if setting != "auto":
        return setting
    try:
        shape = from_config(model.config.to_dict())
    except (KeyError, TypeError, ValueError):
        log.warning("train.gradient_checkpointing is auto and taken as false: the policy's sizes cannot be read")
        return False
    zero: Literal[0, 2, 3] = 3 if zero_stage() == 3 else 2 if zero_stage() else 0
    gpu_gib = torch.cuda.get_device_properties(device).total_memory / GIB if device.type == "cuda" else None
    layout = ProcessLayout(processes, zero, gpu_gib, torch_dtype(policy) == torch.bfloat16, uses_fsdp())
    result = MemoryPlanner(policy, rollout, train, shape).checkpoints_layers(layout)
    log.info("train.gradient_checkpointing is auto: %s for the longest tree of this policy", "on" if result else "off")
    return result
