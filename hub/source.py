"""A run folder as an export sees it: settings, the checkpoint that leaves, what was searched, where it came from."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..configs.mix import environments
from ..configs.run_settings import load_run_config
from ..configs.schema import RunConfig
from ..errors import CheckpointError, ConfigError
from ..eval.identity import folder_identity
from ..rollouts.checkpoints import find_checkpoint
from ..rollouts.turns import UsedTurn, used_turn

EXAMPLE = "What is known about this?"
"""Shown in the card where the run folder holds no question at all."""


@dataclass(frozen=True, slots=True)
class Source:
    """One checkpoint of one run."""

    run: Path
    config: RunConfig
    checkpoint: Path
    checkpoint_hash: str
    searched: Mapping[str, Mapping[str, Any]]
    """What each environment said of itself, by name; {"": …} for a run of one."""

    @property
    def used(self) -> UsedTurn:
        """The turn whose rewrite is the answer."""
        return used_turn(self.config, self.run, self.checkpoint)

    @property
    def is_adapter(self) -> bool:
        """Whether the checkpoint holds LoRA weights."""
        return (self.checkpoint / "adapter_config.json").is_file()

    @property
    def step(self) -> int | None:
        """Training steps behind the checkpoint, where that is known."""
        name = self.checkpoint.name
        if match := re.fullmatch(r"checkpoint-(\d+)", name):
            return int(match[1])
        if name == "best":
            record = read_json(self.checkpoint / "best.json")
            return int(record["step"]) if record and "step" in record else None
        return self.config.train.steps if name == "final" else None


def open_source(run: Path, checkpoint: str | None = None) -> Source:
    """The checkpoint of a run folder that `querylect eval` would take, or the one of that name.

    Raises ConfigError where `run` is no run folder, CheckpointError where it holds no such checkpoint or does not say
    what was searched.
    """
    written = run / "config.yaml"
    if not written.is_file():
        raise ConfigError(f"{run} is no run folder: it holds no config.yaml. Give one that `querylect train` wrote.")
    config = load_run_config(run)
    place = find_checkpoint(run, checkpoint)
    return Source(run, config, place, folder_identity(place), _searched(run, config))


def every_checkpoint(run: Path) -> list[str]:
    """Names of the numbered checkpoints that hold a policy, in the order of their steps."""
    found = [folder.name for folder in (run / "checkpoints").glob("checkpoint-*")]
    numbered = sorted((name for name in found if re.fullmatch(r"checkpoint-\d+", name)), key=lambda n: int(n[11:]))
    whole = []
    for name in numbered:
        try:
            find_checkpoint(run, name)
        except CheckpointError:
            continue
        whole.append(name)
    return whole


def _searched(run: Path, config: RunConfig) -> dict[str, dict[str, Any]]:
    whole = read_json(run / "environment.json")
    if whole is None:
        raise CheckpointError(
            f"{run} holds no environment.json, so nothing says what was searched. Go on with the run (--resume), which "
            "writes it, or train again."
        )
    if config.mix is None:
        return {"": whole}
    each = whole.get("environments")
    if not isinstance(each, dict) or set(each) != set(environments(config)):
        raise CheckpointError(
            f"{run / 'environment.json'} does not describe each environment of the mix: an earlier version wrote it. "
            "Go on with the run (--resume) against the same environments, which writes it anew."
        )
    return each


def run_identity(run: Path) -> str:
    """What tells this run from another of the same name, resumed or not: its first logged step."""
    for name in ("metrics.jsonl", "config.yaml"):
        path = run / name
        if path.is_file():
            with path.open("rb") as file:
                return hashlib.sha256(file.readline() if name == "metrics.jsonl" else file.read()).hexdigest()[:16]
    return ""


def git_state(run: Path) -> dict[str, Any] | None:
    """The state of the sources at the last start of the run, where the run wrote it down."""
    starts = (read_json(run / "provenance.json") or {}).get("starts")
    last = starts[-1] if isinstance(starts, list) and starts else None
    found = last.get("git") if isinstance(last, dict) else None
    return found if isinstance(found, dict) else None


def example_question(run: Path, environment: str) -> str:
    """The first question that the run was evaluated on, else one that it was trained on."""
    folder = run / f"eval-{environment}" if environment else run
    for path in (folder / "eval.jsonl", run / "rollouts.jsonl"):
        for record in _first_records(path):
            question = record.get("question")
            if isinstance(question, str) and question.strip():
                return question
    return EXAMPLE


def _first_records(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as file:
        line = file.readline()
    try:
        record = json.loads(line)
    except ValueError:
        return []
    return [record] if isinstance(record, dict) else []


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no such file or it was cut."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None
