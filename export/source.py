"""What an export is made of: a checkpoint of a run, its settings and environments, and the base model."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..configs.load import load_run_config
from ..configs.schema import RunConfig
from ..data.history import parse_history
from ..data.types import Question
from ..envs.schemas import EnvironmentInfo
from ..errors import CheckpointError, ConfigError
from ..eval.identity import folder_identity
from ..rollouts.checkpoints import UsedTurn, find_checkpoint, refuse_task_model, used_turn
from ..sources import resolve_model
from ..storage import json_object, logged_objects

log = logging.getLogger(__name__)

EXAMPLE = "What is known about this?"
"""The card's example if the run folder contains no question."""
UNKNOWN = "unknown"
"""The Hub's value for an unstated licence."""


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """One checkpoint of one run."""

    run: Path
    config: RunConfig
    checkpoint: Path
    checkpoint_hash: str
    searched: Mapping[str, EnvironmentInfo]
    """Description of each environment by name; {"": …} if there is only one."""

    @property
    def used(self) -> UsedTurn:
        """The turn whose rewrite is used."""
        return used_turn(self.config.rollout, self.config.reward, self.config.train, self.run, self.checkpoint)

    @property
    def is_adapter(self) -> bool:
        """Whether the checkpoint holds LoRA weights."""
        return (self.checkpoint / "adapter_config.json").is_file()

    @property
    def step(self) -> int | None:
        """Training steps of the checkpoint, if known."""
        name = self.checkpoint.name
        if match := re.fullmatch(r"checkpoint-(\d+)", name):
            return int(match[1])
        best: Mapping[str, Any] = json_object(self.checkpoint / "best.json") or {}
        return best.get("step") if name == "best" else self.config.train.steps


def refuse_no_run(run: Path) -> None:
    """Raise ConfigError for a folder that `querylect train` did not write."""
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"{run} is no run folder: it holds no config.yaml. Give one that `querylect train` wrote.")


def open_source(run: Path, checkpoint: str | None = None, trust: bool = False) -> CheckpointSource:
    """The named checkpoint of a run folder, by default the one that `querylect eval` takes.

    Raises ConfigError if it needs `trust` (as `load_run_config`), CheckpointError if it lacks a checkpoint or
    environment.json.
    """
    config = load_run_config(run, trust=trust)
    folder = find_checkpoint(run, checkpoint)
    refuse_task_model(config.optimize, folder)
    info = json_object(run / "environment.json") or {}
    searched = {"": info} if config.mix is None else info.get("environments", {})
    if not info or set(searched) != set(config.mix.environments if config.mix is not None else [""]):
        raise CheckpointError(
            f"{run / 'environment.json'} does not say what was searched. Go on with the run (--resume), which "
            "writes it, or train again."
        )
    environments = {name: EnvironmentInfo.model_validate(values) for name, values in searched.items()}
    return CheckpointSource(run, config, folder, folder_identity(folder), environments)


def example_question(run: Path, environment: str) -> Question:
    """The first evaluation question of the run, else its first training question, else EXAMPLE."""
    for path in (run / "eval.jsonl", run / "rollouts.jsonl"):
        for record in logged_objects(path):
            if environment and record.get("environment") not in (None, environment):
                continue
            return Question("example", record["question"], history=parse_history(record.get("history")))
    return Question("example", EXAMPLE)


@dataclass(frozen=True, slots=True)
class BaseModelSource:
    """The base model of a run, described without anything specific to this machine."""

    name: str
    """The Hub id, or the name of the local folder or package."""
    hub_id: str | None
    """None if the model exists only on this machine."""
    dequantised: bool
    """Whether the weights came from a quantised GGUF file, so that no published safetensors file has the same ones."""
    licence: Mapping[str, Any]
    """`license`, and `license_name` and `license_link` if it is "other", as in the metadata of a model card."""


def base_of(model: str, base_id: str | None = None, licence: str | None = None) -> BaseModelSource:
    """The base model behind `policy.model`.

    `base_id` is the Hub id of a model given as a folder or package; `licence` overrides the one that is looked up.
    Raises ModelError if the model cannot be resolved, ConfigError if `base_id` contradicts a Hub id.
    """
    path = Path(resolve_model(model))
    is_local = path.is_dir()
    if not is_local and base_id not in (None, model):
        raise ConfigError(
            f"--base-model is {base_id!r}, and the run was trained on {model!r} of the Hub. Leave it out."
        )
    hub_id = base_id if is_local else model
    name = hub_id or (model if model.startswith("package:") else path.resolve().name)
    gguf = sorted(path.glob("*.gguf")) if is_local and not any(path.glob("*.safetensors")) else []
    base_licence = {"license": licence} if licence else _licence(path if is_local else None, gguf, model)
    if base_licence["license"] == UNKNOWN:
        log.warning("%s does not say its licence; the card says `unknown`. State it with --license ID", name)
    return BaseModelSource(name, hub_id, bool(gguf), base_licence)


def _licence(folder: Path | None, gguf: list[Path], hub_id: str) -> dict[str, Any]:
    """The licence in the card of a model, or in its GGUF file."""
    from huggingface_hub import ModelCard
    from huggingface_hub.errors import EntryNotFoundError

    card = folder / "README.md" if folder is not None else hub_id
    if folder is None or (folder / "README.md").is_file():
        try:
            data = ModelCard.load(card, ignore_metadata_errors=True).data
        except (OSError, EntryNotFoundError) as error:
            log.debug("the card of %s could not be read: %s", hub_id, error)
        else:
            keys = ("license", "license_name", "license_link")
            return {"license": UNKNOWN} | {key: data.get(key) for key in keys if data.get(key)}
    for file in gguf[:1]:
        from gguf import GGUFReader

        if (field := GGUFReader(file).fields.get("general.license")) is not None:
            return {"license": str(field.contents()).lower()}
    return {"license": UNKNOWN}
