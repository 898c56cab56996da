"""What the KL term compares with: the policy as GRPO finds it, a warm start included.

With LoRA, TRL keeps a frozen copy of the adapter named `ref`, made when the trainer is; a checkpoint carries it. With
all weights trained, TRL loads a second model from the place that the policy's config names, which is said here.
"""

from typing import Any

from ..configs.schema import RunConfig
from ..errors import CheckpointError
from .run_folder import RunFolder


def name_reference(config: RunConfig, folder: RunFolder, policy: Any) -> None:
    """Let `policy` name the folder that its reference model is loaded from, where it is not the one it came from.

    Raises CheckpointError where the policy after the warm start is needed and gone.
    """
    if not (config.train.beta > 0 and config.policy.lora is None and config.train.warm_start.questions):
        return
    if not (folder.warm / "config.json").is_file():
        raise CheckpointError(
            f"{folder.warm} is gone: train.beta {config.train.beta:g} compares with the policy after the warm start, "
            "which was saved there. Put it back, or start a new run under another name."
        )
    policy.config.name_or_path = str(folder.warm)
