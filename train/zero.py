"""DeepSpeed ZeRO, as configured by `accelerate launch --use_deepspeed` through environment variables."""

import os

from ..errors import ConfigError
from ..sources import install_command

OPTIMIZER_PARTS = "global_step*/*optim_states.pt"
"""The optimizer files of a DeepSpeed checkpoint, one per process, instead of optimizer.pt."""


def uses_deepspeed() -> bool:
    """Whether the launcher asked for DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def zero_stage() -> int:
    """The stage of ZeRO that the launcher asked for; 0 without DeepSpeed."""
    if not uses_deepspeed():
        return 0
    from accelerate.utils import DeepSpeedPlugin

    return int(DeepSpeedPlugin().zero_stage)


def lacks_float32_masters() -> str:
    """Why DeepSpeed's optimizer keeps no float32 copies of bfloat16 weights; "" if it does, as in ZeRO stages 1 to 3 by
    default."""
    from accelerate.utils import DeepSpeedPlugin

    plugin = DeepSpeedPlugin()
    if int(plugin.zero_stage) == 0:
        return "ZeRO stage 0 steps bfloat16 weights themselves"
    if plugin.deepspeed_config.get("bf16", {}).get("bf16_master_weights_and_grads", False):
        return "its config sets bf16.bf16_master_weights_and_grads"
    return ""


def check_deepspeed() -> None:
    """Raise ConfigError if DeepSpeed cannot be imported. Keep it from compiling what training does not use."""
    try:
        import deepspeed
    except ImportError as error:
        raise ConfigError(
            f"accelerate asked for DeepSpeed, and it cannot be imported ({error}). Install it "
            f"({install_command('gpu')}), or launch without --use_deepspeed."
        ) from error
    # On a CPU DeepSpeed compiles, for a minute or two, an all-reduce through shared memory for its inference alone
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
