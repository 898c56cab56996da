"""DeepSpeed ZeRO and FSDP2, as accelerate's launcher asks for them through environment variables.

Until training begins the policy is whole in every process: for the warm start, to load a checkpoint, and for the
engine's copy. Under FSDP2 what is written is whole too, in the files of a run without FSDP, so a run may be resumed by
another number of processes, or without FSDP.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ConfigError

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn
    from torch.optim import Optimizer

Sharding = Literal["", "ZeRO-2", "ZeRO-3", "FSDP2"]
"""What splits the training state; "" is plain DDP, where each process holds everything."""
OPTIMIZER_PARTS = "global_step*/*optim_states.pt"
"""The optimizer files of a DeepSpeed checkpoint, one per process, instead of optimizer.pt."""
_UNSUPPORTED = ("FSDP_OFFLOAD_PARAMS", "FSDP_ACTIVATION_CHECKPOINTING", "ACCELERATE_USE_PARALLELISM_CONFIG")
"""Variables by which accelerate's launcher asks for what would silently not happen here."""


def uses_deepspeed() -> bool:
    """Whether the launcher asked for DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def uses_fsdp() -> bool:
    """Whether the launcher asked for FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def zero_stage() -> int:
    """The stage of ZeRO that the launcher asked for; 0 without DeepSpeed."""
    if not uses_deepspeed():
        return 0
    from accelerate.utils import DeepSpeedPlugin

    return int(DeepSpeedPlugin().zero_stage)


def keeps_float32_weights() -> bool:
    """Whether DeepSpeed's optimizer steps float32 copies of bfloat16 weights, as in ZeRO stages 1 to 3 by default."""
    from accelerate.utils import DeepSpeedPlugin

    precision = DeepSpeedPlugin().deepspeed_config.get("bf16", {})
    return zero_stage() > 0 and not precision.get("bf16_master_weights_and_grads", False)


def sharding() -> Sharding:
    """What splits the training state over the processes."""
    stage = zero_stage()
    return "FSDP2" if uses_fsdp() else "ZeRO-3" if stage == 3 else "ZeRO-2" if stage else ""


def splits_weights() -> bool:
    """Whether the launcher asked for weights that are split over the processes."""
    return sharding() in ("ZeRO-3", "FSDP2")


def prepare_deepspeed() -> None:
    """Keep DeepSpeed from compiling, for a minute or two on a CPU, an all-reduce for its inference alone."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def launch_fsdp(processes: int) -> None:
    """Let every process load the whole policy, and gather weights again in the backward pass unless that was refused.

    Raises ConfigError for a single process, and if FSDP was asked for in a way that is not supported.
    """
    refused = [name for name in _UNSUPPORTED if os.environ.get(name, "false").lower() == "true"]
    if refused or os.environ.get("FSDP_VERSION", "1") != "2" or processes < 2:
        raise ConfigError(
            f"accelerate was asked for FSDP in {processes} processes ({', '.join(refused) or 'FSDP_VERSION'}). Only "
            "FSDP2 over several is done here: launch with --config_file configs/fsdp/fsdp2.yaml --num_processes …, or "
            "with --use_deepspeed."
        )
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"  # would leave weights unloaded in all but the main process
    if os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "").lower() != "false":
        os.environ["FSDP_RESHARD_AFTER_FORWARD"] = "true"


def enable_fsdp(accelerator: "Accelerator") -> None:
    """Let `accelerator` split the model that it prepares.

    accelerate does so by itself on GPUs only, where it would reduce gradients and return log-probabilities in bfloat16
    if the policy computes in it. `cast_forward_inputs` would copy the layout of a packed row (train/packing).
    """
    import torch
    from accelerate import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if accelerator.mixed_precision == "bf16" else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        mixed_precision_policy=precision,
        cpu_ram_efficient_loading=False,
    )


def whole_weights(model: "nn.Module", main: bool) -> "dict[str, Tensor]":
    """The weights of a policy, or of its adapters alone, by their names in it: whole and in the memory of the CPU where
    `main`, nothing in other processes. Collective, one weight at a time."""
    from peft import PeftModel

    weights: dict[str, Tensor] = model.state_dict(keep_vars=True)
    if isinstance(model, PeftModel):
        weights = {name: weight for name, weight in weights.items() if ".lora_" in name}
    once = _gathered({id(weight): weight for weight in weights.values()}, main)  # tied weights stay tied
    return {name: once[id(weight)] for name, weight in weights.items()} if main else {}


def save_optimizer(optimizer: "Optimizer", path: Path, main: bool) -> None:
    """Write the state of an optimizer, whole as without FSDP, in the process where `main`. Collective."""
    import torch

    content = optimizer.state_dict()
    content["state"] = {index: _gathered(state, main) for index, state in content["state"].items()}
    if main:
        torch.save(content, path)


def load_optimizer(optimizer: "Optimizer", path: Path) -> None:
    """Read this process's parts of a whole state; `optimizer` holds the parts of the weights already."""
    import torch

    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    content["state"] = {index: _parts(state, weights[index]) for index, state in content["state"].items()}
    optimizer.load_state_dict(content)


def _gathered(tensors: "Mapping[Any, Tensor]", main: bool) -> "dict[Any, Tensor]":
    from ..rollouts.weights import whole

    gathered = {}
    for key, tensor in tensors.items():
        complete = whole(tensor).detach()
        if main:
            gathered[key] = complete.cpu()
    return gathered


def _parts(state: "Mapping[str, Tensor]", weight: "Tensor") -> "dict[str, Tensor]":
    """The parts of the tensors of a weight's shape that belong to this process's part of the weight."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(weight, DTensor)
    mesh, placements = weight.device_mesh, weight.placements
    return {
        name: distribute_tensor(tensor, mesh, placements, src_data_rank=None).clone()  # of what is else a view
        if tensor.shape == weight.shape
        else tensor
        for name, tensor in state.items()
    }
