"""A run folder: all files of one run, readable while it is written and after a crash.

run.json          version of querylect, command, and a random id of the run
config.yaml       the resolved settings             metrics.jsonl     one record per step
environment.json  the environment, with hashes      rollouts.jsonl    sampled trees
provenance.json   git state and versions per start
checkpoints/      checkpoint-N, complete or absent  warm_start.jsonl  loss per step before GRPO, where there was one
final/            the trained policy                warm_start/       the policy before GRPO, where there was one
base.json         fingerprint of the base weights   validation.jsonl  one record per validation, where there is one
                                                    best/             the policy that was best in validation
"""

import json
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from ..configs.load import among, flat, free_to_change, is_own, load_config, write_yaml
from ..configs.schema import RunConfig
from ..errors import CheckpointError, ConfigError
from ..provenance import Start
from ..rollouts.checkpoints import WARM_START_FOLDER
from ..sources import portable
from ..storage import append, json_object, logged_objects, restore_folder, write_text, writing
from ..version import __version__
from .sharding import OPTIMIZER_PARTS, uses_deepspeed


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.final = path / "final"
        self.metrics = path / "metrics.jsonl"
        self.rollouts = path / "rollouts.jsonl"
        self.warm_start = path / "warm_start.jsonl"
        self.warm = path / WARM_START_FOLDER
        self.validation = path / "validation.jsonl"
        self.best = path / "best"

    def refuse_existing(self) -> None:
        """Raise ConfigError if the folder holds a run."""
        if (self.path / "config.yaml").exists():
            raise ConfigError(
                f"{self.path} already holds a run. Continue it with --resume, choose another name "
                f"(name=…), or remove the folder."
            )

    def create(self, settings: Mapping[str, object], command: str = "train") -> None:
        """Start a new run of a command, with the settings of a RunConfig as plain data."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        version = {"querylect": __version__, "id": secrets.token_hex(16), "command": command}
        self.write("run.json", version)
        write_text(self.path / "config.yaml", write_yaml(settings))

    def reopen(self, config: RunConfig, trust: bool = False, command: str = "train") -> Path | None:
        """Resume a run: its newest checkpoint, or None if there is none yet.

        Raises CheckpointError if there is no run, if it is of another command, if relevant settings differ
        (the message names them), and, without `trust`, if a run of another user has pickles to read.
        """
        if not (self.path / "config.yaml").exists():
            raise CheckpointError(f"{self.path} holds no run to resume; start it without --resume.")
        if (starter := (json_object(self.path / "run.json") or {}).get("command")) != command:
            raise CheckpointError(f"{self.path} was started by `querylect {starter}`, which alone goes on with it.")
        if not trust and uses_deepspeed() and self.numbered() and not is_own(self.path):
            raise CheckpointError(
                f"{self.path} is not yours, and DeepSpeed's checkpoints are pickles, which can run code when read. "
                "If you trust its author, add --trust."
            )
        if changed := changed_keys(load_config(str(self.path / "config.yaml")), config):
            raise CheckpointError(
                f"{self.path} was started with other settings: {'; '.join(changed)}. "
                "Resume with the settings it was started with, or start a new run under another name."
            )
        for saved in (self.best, self.warm, self.final):
            restore_folder(saved)
        checkpoint = self.newest_checkpoint()
        if step_of(checkpoint) > config.train.steps:
            raise CheckpointError(
                f"{self.path} has reached step {step_of(checkpoint)} and train.steps is {config.train.steps}. "
                "Raise it to go on."
            )
        return checkpoint

    def newest_checkpoint(self) -> Path | None:
        """Raises CheckpointError if it was written with DeepSpeed and training now runs without it, or vice versa."""
        path = next(reversed(self.numbered()), None)
        deepspeed = uses_deepspeed()
        foreign = "optimizer.pt" if deepspeed else OPTIMIZER_PARTS
        if path is not None and any(path.glob(foreign)):
            raise CheckpointError(
                f"{path} holds {foreign}: it was written {'without' if deepspeed else 'with'} DeepSpeed. "
                "Go on with the launcher that the run was started with."
            )
        return path

    def numbered(self) -> list[Path]:
        """All checkpoints in the order of their steps."""
        paths = self.checkpoints.glob("checkpoint-*")
        return sorted((path for path in paths if re.fullmatch(r"checkpoint-\d+", path.name)), key=step_of)

    def same_environment(self, current: Mapping[str, JsonValue]) -> None:
        """Raise CheckpointError if the run was started on another environment than `current`."""
        previous = json_object(self.path / "environment.json") or {}
        names = ("retriever", "corpus_hash", "index_hash", "settings_hash", "answers")
        if previous and (changed := _differences(previous, current, names)):
            raise CheckpointError(
                f"{self.path} was started on another environment: {'; '.join(changed)} (settings_hash: of questions, "
                "judgements and search settings). Serve that one again, or start a new run under another name."
            )

    def same_base(self, model: str, fingerprint: str, resumed: bool) -> None:
        """Record the fingerprint of the weights that training starts from.

        Raises CheckpointError if a resumed run was started from other weights.
        """
        previous = (json_object(self.path / "base.json") or {}).get("fingerprint", fingerprint)
        if resumed and previous != fingerprint:
            raise CheckpointError(
                f"{self.path} was started on other weights than {model!r} holds now. Bring them back, or start a new "
                "run under another name."
            )
        self.write("base.json", {"model": model, "fingerprint": fingerprint})

    def note_start(self, start: Start) -> None:
        """Append the provenance of this start to provenance.json; a start at step 0 discards earlier ones."""
        earlier = (json_object(self.path / "provenance.json") or {}).get("starts", []) if start["step"] else []
        self.write("provenance.json", {"starts": [*earlier, start]})

    def write(self, name: str, values: Mapping[str, object]) -> None:
        """Write a JSON file of the folder atomically. Raises StorageError."""
        write_text(self.path / name, json.dumps(values, indent=2) + "\n")

    def forget_after(self, step: int) -> None:
        """Drop records after `step`, and a truncated last line, so that a resumed run logs no step twice.

        At step 0 the run starts over, including its warm start.
        """
        if step == 0:
            for path in (self.warm_start, self.validation):
                path.unlink(missing_ok=True)
            shutil.rmtree(self.best, ignore_errors=True)
        for path in (self.metrics, self.rollouts, self.validation):
            if path.exists():
                write_text(path, _as_lines([record for record in logged_objects(path) if record["step"] <= step]))

    def append(self, path: Path, *records: Mapping[str, JsonValue]) -> None:
        """Append lines of JSON. Raises StorageError."""
        with writing(path):
            append(path, _as_lines(records))

    def keep_newest(self, count: int) -> None:
        """Remove all but the newest `count` checkpoints."""
        for path in self.numbered()[:-count]:
            shutil.rmtree(path)


def step_of(checkpoint: Path | None) -> int:
    """The step after which a checkpoint was written; 0 without one."""
    return int(checkpoint.name.removeprefix("checkpoint-")) if checkpoint is not None else 0


def _as_lines(records: Sequence[Mapping[str, JsonValue]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def remove_traces(checkpoint: Path, model: str) -> None:
    """Remove from a saved policy what tells of this machine or differs between equal runs, and what nothing reads.

    That are a pickle of the training arguments, peft's empty model card, the path of the base model (of `model`, the
    setting, the name stays), and the order of the adapted layers.
    """
    for name in ("training_args.bin", "README.md"):
        (checkpoint / name).unlink(missing_ok=True)
    adapter = checkpoint / "adapter_config.json"
    if values := json_object(adapter):
        values["base_model_name_or_path"] = portable(model)
        if isinstance(values["target_modules"], list):
            values["target_modules"].sort()
        adapter.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def changed_keys(previous: RunConfig, current: RunConfig) -> list[str]:
    """Relevant settings that differ, as "key: old → new"; changes that `free_to_change` allows are ignored."""
    free = free_to_change(previous.train)
    old, new = dict(flat(previous.model_dump())), dict(flat(current.model_dump()))
    return _differences(old, new, [key for key in sorted({*old, *new}) if not among(key, free)])


def _differences(old: Mapping[str, object], new: Mapping[str, object], names: Sequence[str]) -> list[str]:
    return [f"{name}: {old.get(name)!r} → {new.get(name)!r}" for name in names if old.get(name) != new.get(name)]
