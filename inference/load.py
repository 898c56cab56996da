"""Resolves a name to a policy: a run folder, an exported folder, a Hub repository, or a config (untrained policy).

The result is the same for all of them: settings to load the policy with, its checkpoint, and for each environment the
rewriter's settings and the target retriever.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..configs.load import known_configs, load_config, load_run_config, validated
from ..configs.schema import PolicyConfig, RewriterConfig, RunConfig, environments
from ..errors import ConfigError, ModelError, in_one_line
from ..export.exported import FILE, read_exported, settings_of
from ..rewriters.retriever_info import RetrieverInfo
from ..rollouts.checkpoints import UsedTurn, find_checkpoint, refuse_task_model, used_turn, with_prompt
from ..sources import optional_packages
from ..storage import json_object

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_NOT_NEEDED = ["*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "optimizer*"]
"""Files of a Hub repository that are not downloaded."""


@dataclass(frozen=True, slots=True)
class Member:
    """The rewriter and the retriever of one environment."""

    rewriter: RewriterConfig
    retriever: RetrieverInfo | None
    """The retriever of training; None if no file records it and the environment must be asked."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A policy and everything needed to query it."""

    name: str
    """As the user called it."""
    config: RunConfig
    """All settings of a run or config; of an export, policy and rollout plus the overrides."""
    checkpoint: Path | None
    """Folder of an adapter on `config.policy.model`, or of weights that replace it; None for the model itself."""
    members: Mapping[str, Member]
    """By environment name; {"": …} if there is only one."""
    base: PolicyConfig
    """The untrained model, which the first stage of some rewriters uses."""
    used: UsedTurn
    """The turn whose rewrite is used, and the reason."""
    searchable: bool
    """Whether `config` configures a search; for an export, only if `settings` do."""
    base_fingerprint: str | None = None
    """Fingerprint of the base weights of an exported adapter; None for a run, which stores its own."""
    is_trained: bool = True
    """False for a config, whose policy is the untrained model."""


def open_trained(
    name: str,
    *,
    revision: str | None = None,
    checkpoint: str | None = None,
    settings: Sequence[str] = (),
    trust: bool = False,
) -> Trained:
    """Resolve `name`, downloading a Hub repository, without loading the model.

    `revision` is for the Hub, `checkpoint` (best, final, checkpoint-40) for a run folder, `settings` are
    overrides such as "rollout.micro_batch=8". Without `trust`, code that the run folder of another user
    names is refused.
    Raises ConfigError if the name cannot be resolved, a setting is invalid or needs `trust`, CheckpointError if a run
    has no such checkpoint, ModelError for an unusable or unreachable export.
    """
    folder = Path(name).expanduser()
    exported = (folder / FILE).is_file()
    run = (folder / "config.yaml").is_file() and not exported
    from_hub = not folder.exists() and _HUB_ID.fullmatch(name) is not None and not name.endswith((".yaml", ".yml"))
    if checkpoint is not None and not run:
        raise ConfigError(f"the checkpoint {checkpoint!r} is asked for, and {name!r} is no run folder. Leave it out.")
    if revision is not None and not from_hub:
        raise ConfigError(f"the revision {revision!r} is asked for, and {name!r} is not on the Hub. Leave it out.")
    if from_hub:
        folder = _downloaded(name, revision)
    if exported or from_hub:
        return _open_export(name, folder, settings)
    if run:
        config = load_run_config(folder, settings, trust=trust)
        checkpoint_path = find_checkpoint(folder, checkpoint)
        refuse_task_model(config.optimize, checkpoint_path)
        turn = used_turn(config.rollout, config.reward, config.train, folder, checkpoint_path)
        prompted = with_prompt(config, checkpoint_path)
        return of_config(name, prompted, checkpoint_path, json_object(folder / "environment.json"), turn)
    if folder.is_dir() and name not in known_configs():
        raise ConfigError(
            f"{name} is no run folder (it holds no config.yaml) and no export (it holds no {FILE}). Give a folder that "
            "`querylect train` or `querylect export` wrote."
        )
    return replace(of_config(name, load_config(name, settings), None, None), is_trained=False)


def of_config(
    name: str,
    config: RunConfig,
    checkpoint: Path | None,
    record: Mapping[str, Any] | None,
    used: UsedTurn | None = None,
) -> Trained:
    """The policy of a config. `record` is the content of environment.json, if known; `used` the selected turn."""
    retriever: Mapping[str, Any] = record["retriever"] if record is not None else {}
    retrievers = retriever if config.mix is not None else {"": retriever}
    members = {
        env: Member(section.rewriter, RetrieverInfo.from_service(retrievers[env]) if retrievers.get(env) else None)
        for env, section in environments(config).items()
    }
    used = used or used_turn(config.rollout, config.reward, config.train, None, None)
    return Trained(name, config, checkpoint, members, config.policy, used, searchable=True)


def with_retrievers(trained: Trained) -> Trained:
    """The policy with missing descriptions of retrievers filled in by asking the environments of its config.

    Raises as `open_environments`.
    """
    if all(member.retriever is not None for member in trained.members.values()):
        return trained
    from ..envs.client.connect import open_environments

    with open_environments(environments(trained.config)) as client:
        record = {"retriever": client.info().retriever}
    return replace(trained, members=of_config(trained.name, trained.config, None, record, trained.used).members)


def _open_export(name: str, folder: Path, settings: Sequence[str]) -> Trained:
    exported = read_exported(folder)
    values = settings_of(exported, folder).model_dump(mode="json")
    config = validated(RunConfig, values, str(folder / FILE), settings)
    used = UsedTurn(exported.turn, exported.turn_reason)
    trained = of_config(name, config, folder if exported.lora else None, exported.environment, used)
    return replace(
        trained,
        base=config.policy.model_copy(update={"model": exported.base_model}),
        searchable=any(override.strip().startswith(("env.", "client.")) for override in settings),
        base_fingerprint=exported.run.base_fingerprint if exported.lora else None,
    )


def _downloaded(name: str, revision: str | None) -> Path:
    """Download a Hub repository, FILE first, to fail early if it is missing."""
    with optional_packages("local"):
        from huggingface_hub import hf_hub_download, snapshot_download

    try:
        hf_hub_download(name, FILE, revision=revision)
        return Path(snapshot_download(name, revision=revision, ignore_patterns=_NOT_NEEDED))
    except OSError as error:
        raise ModelError(f"{name!r} is no folder here and no rewriter on the Hub: {in_one_line(error, 500)}") from error
