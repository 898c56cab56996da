"""The parts of a run folder that an export needs: settings, checkpoint, environments and provenance."""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..configs.run_settings import load_run_config
from ..configs.schema import MixConfig, RunConfig
from ..data.history import parse_history
from ..data.types import Question
from ..errors import CheckpointError, ConfigError
from ..eval.identity import folder_identity
from ..rollouts.checkpoints import UsedTurn, find_checkpoint, refuse_task_model, used_turn
from ..storage import json_object, parse_json

EXAMPLE = "What is known about this?"
"""The card's example if the run folder contains no question."""


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """One checkpoint of one run."""

    run: Path
    config: RunConfig
    checkpoint: Path
    checkpoint_hash: str
    searched: Mapping[str, Mapping[str, Any]]
    """Description of each environment by name; {"": …} if there is only one."""

    @property
    def used(self) -> UsedTurn:
        """The turn whose rewrite is used."""
        config = self.config
        return used_turn(config.rollout, config.reward, config.train, self.run, self.checkpoint)

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
        if name == "best":
            record = json_object(self.checkpoint / "best.json")
            return int(record["step"]) if record and "step" in record else None
        return self.config.train.steps if name == "final" else None


def open_source(run: Path, checkpoint: str | None = None, trust: bool = False) -> CheckpointSource:
    """The named checkpoint of a run folder, by default the one that `querylect eval` takes.

    Raises ConfigError if `run` is no run folder or needs `trust` (as `load_run_config`), CheckpointError if it lacks a
    checkpoint or environment.json.
    """
    config_path = run / "config.yaml"
    if not config_path.is_file():
        raise ConfigError(f"{run} is no run folder: it holds no config.yaml. Give one that `querylect train` wrote.")
    config = load_run_config(run, trust=trust)
    folder = find_checkpoint(run, checkpoint)
    refuse_task_model(config.optimize, folder)
    return CheckpointSource(run, config, folder, folder_identity(folder), _searched(run, config.mix))


def _searched(run: Path, mix: MixConfig | None) -> dict[str, dict[str, Any]]:
    description = json_object(run / "environment.json") or {}
    by_name = {"": description} if mix is None else description.get("environments", {})
    if not description or set(by_name) != set(mix.environments if mix is not None else [""]):
        raise CheckpointError(
            f"{run / 'environment.json'} does not say what was searched. Go on with the run (--resume), which "
            "writes it, or train again."
        )
    return by_name


def run_identity(run: Path) -> str:
    """A hash of the first logged step: it distinguishes runs of the same name and survives a resume."""
    for name in ("metrics.jsonl", "config.yaml"):
        path = run / name
        if path.is_file():
            with path.open("rb") as file:
                return hashlib.sha256(file.readline() if name == "metrics.jsonl" else file.read()).hexdigest()[:16]
    return ""


def example_question(run: Path, environment: str) -> Question:
    """The first evaluation question of the run, else its first training question, else EXAMPLE."""
    folder = run / f"eval-{environment}" if environment else run
    for path in (folder / "eval.jsonl", run / "rollouts.jsonl"):
        with suppress(OSError, ValueError), path.open("rb") as file:
            record = parse_json(file.readline())
            question = record.get("question") if isinstance(record, dict) else None
            if isinstance(question, str) and question.strip():
                return Question("example", question, history=parse_history(record.get("history")))
    return Question("example", EXAMPLE)
