"""Finding the trained policy in a run folder, and what it rests on."""

import re
from pathlib import Path

from ..configs.llm import LlmConfig, OptimizeConfig
from ..configs.schema import RunConfig
from ..errors import CheckpointError, ConfigError
from ..storage import parse_json

PROMPT_FILE = "prompt.yaml"
"""The prompt in a checkpoint of `querylect optimize`, which has no weights."""
WARM_START_FOLDER = "warm_start"
"""The folder in a run that holds the policy after the warm start and before GRPO."""


def find_checkpoint(run: Path, name: str | None = None) -> Path:
    """The policy of a run: `best` where training marked one, else `final`, else the checkpoint of the highest step.

    `name` asks for one of them: best, final, checkpoint-40. Raises CheckpointError where the folder holds no complete
    checkpoint, or none of that name.
    """
    folders = [folder for base in (run, run / "checkpoints") if base.is_dir() for folder in base.iterdir()]
    complete = {folder.name: folder for folder in folders if _is_policy(folder)}
    if name is not None:
        if name not in complete:
            available = ", ".join(sorted(complete)) or "none"
            raise CheckpointError(f"run folder {run} holds no checkpoint {name!r}; complete ones are: {available}.")
        return complete[name]
    for preferred in ("best", "final"):
        if preferred in complete:
            return complete[preferred]
    numbered = {int(match[1]): folder for label, folder in complete.items() if (match := re.search(r"-(\d+)$", label))}
    if not numbered:
        raise CheckpointError(
            f"run folder {run} holds no checkpoint with adapter_config.json or config.json and safetensors. "
            "Train first (`querylect train`), or give the folder of a run that saved one."
        )
    return numbered[max(numbered)]


def optimized_prompt(checkpoint: Path | None) -> Path | None:
    """The prompt file of a checkpoint of `querylect optimize`; None for a checkpoint with weights."""
    if checkpoint is None or _has_weights(checkpoint) or not (checkpoint / PROMPT_FILE).is_file():
        return None
    return checkpoint / PROMPT_FILE


def with_prompt(config: RunConfig, checkpoint: Path | None) -> RunConfig:
    """The settings of a run with the prompt of its checkpoint, where that holds one instead of weights."""
    prompt = optimized_prompt(checkpoint)
    if prompt is None:
        return config
    return config.model_copy(update={"rewriter": config.rewriter.model_copy(update={"prompt": str(prompt)})})


def task_model(settings: OptimizeConfig, checkpoint: Path | None) -> LlmConfig | None:
    """The frozen model whose prompt a checkpoint of `querylect optimize` holds; None where that is the policy."""
    return settings.task if optimized_prompt(checkpoint) is not None else None


def refuse_task_model(settings: OptimizeConfig, checkpoint: Path) -> None:
    """Raise ConfigError for a checkpoint with the prompt of `optimize.task`: there is no policy to load."""
    task = task_model(settings, checkpoint)
    if task is not None:
        raise ConfigError(
            f"{checkpoint} holds a prompt for optimize.task ({task.model}), which is no policy that can be loaded. "
            f"Evaluate it with `querylect eval`, or use its prompt elsewhere: rewriter.prompt={checkpoint}/"
            f"{PROMPT_FILE}."
        )


def has_warm_start(run: Path) -> bool:
    """Whether the run folder holds the policy after a warm start and before GRPO."""
    return _is_policy(run / WARM_START_FOLDER)


def find_warm_start(run: Path) -> Path | None:
    """The policy of a run after its warm start and before GRPO; None where the run had none."""
    return run / WARM_START_FOLDER if has_warm_start(run) else None


def base_fingerprint(run: Path) -> str | None:
    """That of the weights which training started from; None where the run did not write it down."""
    try:
        value = parse_json((run / "base.json").read_text(encoding="utf-8"))["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None


def base_under(checkpoint: Path) -> str | None:
    """`base_fingerprint` of the run that a checkpoint lies in; None where it lies in no run."""
    folder = checkpoint.parent
    return base_fingerprint(folder.parent if folder.name == "checkpoints" else folder)


def _is_policy(folder: Path) -> bool:
    """Whether a folder holds a policy, or the prompt of one that was not trained."""
    return _has_weights(folder) or optimized_prompt(folder) is not None


def _has_weights(folder: Path) -> bool:
    """Whether a folder holds a configuration and weights; an interrupted save has only one of them."""
    configured = any((folder / name).is_file() for name in ("adapter_config.json", "config.json"))
    return configured and any(folder.glob("*.safetensors"))
