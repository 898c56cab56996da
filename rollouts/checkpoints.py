"""The policies in a run folder, what they rest on, and which of their turns is used.

Every validation record of a run holds `turn`, the winner of its step: `best/best.json` is the record of `best/`, and
validation.jsonl has those of `final/` and of the numbered checkpoints.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..configs.llm import LlmConfig, OptimizeConfig
from ..configs.schema import RewardConfig, RolloutConfig, RunConfig, TrainConfig
from ..errors import CheckpointError, ConfigError
from ..storage import json_object, logged_objects

PROMPT_FILE = "prompt.yaml"
"""The prompt in a checkpoint of `querylect optimize`, which has no weights."""
WARM_START_FOLDER = "warm_start"
"""The folder in a run that holds the policy after the warm start and before GRPO."""

ValidationRecord = Mapping[str, float | None]
"""A record of validation.jsonl: the step, its means by name and turn, and `turn`, the winner (None without means)."""


def find_checkpoint(run: Path, name: str | None = None) -> Path:
    """The policy of a run: `best` where training marked one, else `final`, else the checkpoint of the highest step.

    `name` asks for one of them: best, final, checkpoint-40. Raises CheckpointError where the folder holds no complete
    checkpoint, or none of that name.
    """
    folders = [folder for base in (run, run / "checkpoints") if base.is_dir() for folder in base.iterdir()]
    complete = {folder.name: folder for folder in folders if _has_weights(folder) or optimized_prompt(folder)}
    numbered = {int(match[1]): label for label in complete if (match := re.search(r"-(\d+)$", label))}
    ranked = ["best", "final", *(numbered[step] for step in sorted(numbered, reverse=True))]
    for label in ranked if name is None else [name]:
        if label in complete:
            return complete[label]
    raise CheckpointError(
        f"run folder {run} holds no {'checkpoint' if name is None else repr(name)} with adapter_config.json or "
        f"config.json and safetensors; complete ones are: {', '.join(sorted(complete)) or 'none'}. Train first "
        "(`querylect train`), or give another folder or checkpoint."
    )


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


def find_warm_start(run: Path) -> Path | None:
    """The policy of a run after its warm start and before GRPO; None where the run had none."""
    return run / WARM_START_FOLDER if _has_weights(run / WARM_START_FOLDER) else None


def base_fingerprint(run: Path) -> str | None:
    """That of the weights which training started from; None where the run did not write it down."""
    return (json_object(run / "base.json") or {}).get("fingerprint")


def base_under(checkpoint: Path) -> str | None:
    """`base_fingerprint` of the run that a checkpoint lies in; None where it lies in no run."""
    folder = checkpoint.parent
    return base_fingerprint(folder.parent if folder.name == "checkpoints" else folder)


def _has_weights(folder: Path) -> bool:
    """Whether a folder holds a configuration and weights; an interrupted save has only one of them."""
    configured = any((folder / name).is_file() for name in ("adapter_config.json", "config.json"))
    return configured and any(folder.glob("*.safetensors"))


@dataclass(frozen=True, slots=True)
class UsedTurn:
    """The turn whose rewrite is the answer."""

    turn: int
    """1 for the first."""
    reason: str
    """Why this one, in a few words."""


def used_turn(
    rollout: RolloutConfig, reward: RewardConfig, train: TrainConfig, run: Path | None, checkpoint: Path | None
) -> UsedTurn:
    """The turn that won on the validation of a checkpoint, the last one without a validation; the first one for a
    policy of no run (None), which searches nothing."""
    turns, metric = len(rollout.branching), reward.objective
    if turns == 1:
        return UsedTurn(1, "it has one turn")
    if run is None or checkpoint is None:
        return UsedTurn(1, "of no run, so the first turn")
    record = _validation_record(train, run, checkpoint) or {}
    if (winner := winning_turn(record, metric, turns)) is None:
        return UsedTurn(turns, f"{checkpoint.name} was not validated, so the last turn")
    scores = ", ".join(f"turn {turn} {value:.3f}" for turn, value in _means(record, metric, turns).items())
    return UsedTurn(winner, f"best on {record.get('questions', '?')} validation questions: {metric} of {scores}")


def winning_turn(record: ValidationRecord, metric: str, turns: int) -> int | None:
    """The turn with the highest mean of `metric` in a validation record, the earlier one of equals; None without any.

    A later turn costs a search and another answer, so it has to be better.
    """
    means = _means(record, metric, turns)
    return max(means, key=lambda turn: (means[turn], -turn)) if means else None


def best_value(record: ValidationRecord, metric: str, turns: int) -> float:
    """The mean of `metric` at the turn that won. ValueError where the record has none."""
    return max(_means(record, metric, turns).values())


def metric_key(metric: str, turn: int) -> str:
    """The entry of a validation record that holds a metric at a turn."""
    return f"{metric.partition('@')[0]}/turn{turn}"


def best_record(run: Path) -> ValidationRecord | None:
    """The validation record of the policy in best/ of a run folder; None where there is none."""
    return json_object(run / "best" / "best.json")


def _means(record: ValidationRecord, metric: str, turns: int) -> dict[int, float]:
    """The mean of `metric` at each turn that has one."""
    values = ((turn, record.get(metric_key(metric, turn))) for turn in range(1, turns + 1))
    return {turn: value for turn, value in values if value is not None}


def _validation_record(train: TrainConfig, run: Path, checkpoint: Path) -> ValidationRecord | None:
    """The validation record of these weights; None where there is none."""
    if checkpoint.name == "best":
        return best_record(checkpoint.parent)
    records = {record["step"]: record for record in logged_objects(run / "validation.jsonl")}
    if checkpoint.name == "final":
        finished = max((record["step"] for record in logged_objects(run / "metrics.jsonl")), default=train.steps)
        last = max(records, default=-1)
        return records[last] if last >= finished else None
    step = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return records.get(int(step[1])) if step else None
