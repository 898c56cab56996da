"""The second set of weights that a KL term needs where all weights are trained: on the GPU only while it is asked.

Where adapters are trained there is none: TRL switches to a frozen copy of the adapter.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from accelerate.utils import extract_model_from_parallel
from torch import nn
from torch.distributed.fsdp import FSDPModule

from .fsdp import splits_weights

if TYPE_CHECKING:
    from trl import GRPOConfig

_TRL = logging.getLogger("trl.trainer.grpo_trainer")


@contextmanager
def loaded_on_the_cpu(args: "GRPOConfig") -> Iterator[None]:
    """While TRL's trainer is made in this context, it loads its reference model on the CPU.

    By itself it would spread the model by `device_map="auto"`, which takes the GPU memory that is free at the moment
    for all there is: while vLLM is awake, layers would stay on the CPU or the disk.
    """

    def about_settings(record: logging.LogRecord) -> bool:  # TRL says that the policy ignores them, which is meant
        return "model_init_kwargs" not in record.getMessage()

    previous, args.model_init_kwargs = args.model_init_kwargs, {"device_map": None}
    _TRL.addFilter(about_settings)
    try:
        yield
    finally:
        _TRL.removeFilter(about_settings)
        args.model_init_kwargs = previous


def offloads(device: torch.device) -> bool:
    """Whether there is another memory to go to. ZeRO-3 and FSDP2 split the reference model over the processes
    instead."""
    return device.type != "cpu" and not splits_weights()


def offload(model: nn.Module) -> None:
    """Move the weights to the CPU and release what they took on the GPU."""
    extract_model_from_parallel(model).to("cpu")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def release(model: nn.Module) -> None:
    """Release what FSDP2 has gathered of the weights for a forward pass that no backward pass follows."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


@contextmanager
def on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Within this context the weights are on `device`, after it on the CPU."""
    extract_model_from_parallel(model).to(device)
    try:
        yield
    finally:
        offload(model)
