"""DeepSpeed's ZeRO, which a launcher asks for in the environment: accelerate launch --use_deepspeed."""

import os

from ..errors import ConfigError

OPTIMIZER_PARTS = "global_step*/*optim_states.pt"
"""Where a checkpoint has the optimizer: each process writes its part, instead of one optimizer.pt."""


def deepspeed_asked() -> bool:
    """Whether the launcher asked for DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def zero_stage() -> int:
    """The stage of ZeRO that the launcher asked for; 0 without DeepSpeed."""
    if not deepspeed_asked():
        return 0
    from accelerate.utils import DeepSpeedPlugin

    return int(DeepSpeedPlugin().zero_stage)


def check_deepspeed() -> None:
    """Raise ConfigError where DeepSpeed cannot be imported."""
    try:
        import deepspeed  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"accelerate asked for DeepSpeed, and it cannot be imported ({error}). Install querylect[gpu], or launch "
            "without --use_deepspeed."
        ) from error
