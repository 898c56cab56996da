"""What a name leads to: a run folder, an exported folder, a Hub repository, or a config, whose policy is untrained.

All of them come out as one thing: settings to load the policy with, its checkpoint, and for each environment the
rewriter's settings and the retriever that it speaks to.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..configs.load import known_configs, load_config, validated
from ..configs.mix import environments, only
from ..configs.rewriter import RewriterConfig
from ..configs.run_settings import load_run_config
from ..configs.schema import PolicyConfig, RunConfig
from ..errors import CheckpointError, ConfigError, DownloadError, ModelError, first_line
from ..hub.exported import FILE, read_exported, rewriter_of
from ..rewriters.card import RetrieverCard
from ..rollouts.checkpoints import find_checkpoint
from ..rollouts.turns import UsedTurn, used_turn
from ..sources import resolve_model

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_NOT_NEEDED = ["*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "optimizer*"]
"""Files of a Hub repository that are never loaded."""


@dataclass(frozen=True, slots=True)
class Member:
    """How questions for one environment are asked."""

    rewriter: RewriterConfig
    card: RetrieverCard | None
    """The retriever that it was trained for; None where that is not written down, and the environment says it."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """All that the environment said of the retriever then: the fingerprint of its model, its templates, …"""


@dataclass(frozen=True, slots=True)
class Trained:
    """A policy and all that is needed to ask it."""

    name: str
    """As the user called it."""
    config: RunConfig
    """Policy and rollout; of a run or a config, all of its settings."""
    checkpoint: Path | None
    """A folder to load over or instead of `config.policy.model`; None is that model itself."""
    members: Mapping[str, Member]
    """By the name of their environment; {"": …} where there is only one."""
    base: PolicyConfig
    """The model before it was trained, which a rewriter's first stage may ask."""
    k: int
    """Documents that a plan asks for."""
    used: UsedTurn
    """The turn whose rewrite is the answer, and why."""
    searchable: bool
    """Whether `config` says what is searched: an export does only where the settings given with it say it."""
    base_fingerprint: str | None = None
    """Of the weights that an exported adapter was trained on; a checkpoint in a run folder is told by its run."""

    @property
    def turns(self) -> int:
        """As it was trained."""
        return len(self.config.rollout.branching)


def open_trained(
    name: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    checkpoint: str | None = None,
    settings: Sequence[str] = (),
    trust_remote_code: bool = False,
) -> Trained:
    """Find what `name` leads to; of a Hub repository, download it. Nothing is loaded.

    `revision` and `token` are for the Hub, `checkpoint` (best, final, checkpoint-40) for a run folder, `settings` are
    overrides such as "rollout.micro_batch=8". Raises ConfigError where the name leads nowhere or a setting is none,
    CheckpointError where a run has no such checkpoint, ModelError for an unusable export, DownloadError.
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
        folder = _downloaded(name, revision, token)
    if exported or from_hub:
        return _of_export(name, folder, settings, trust_remote_code, token)
    if run:
        config = load_run_config(folder, settings)
        place = find_checkpoint(folder, checkpoint)
        return of_config(name, config, place, _searched(folder), used_turn(config, folder, place))
    if folder.is_dir() and name not in known_configs():
        raise ConfigError(
            f"{name} is no run folder (it holds no config.yaml) and no export (it holds no {FILE}). Give a folder that "
            "`querylect train` or `querylect export` wrote."
        )
    return of_config(name, load_config(name, settings), None, None)


def _member(rewriter: RewriterConfig, card: Mapping[str, Any] | None) -> Member:
    return Member(rewriter, RetrieverCard.from_service(card), card) if card else Member(rewriter, None)


def of_config(
    name: str,
    config: RunConfig,
    checkpoint: Path | None,
    searched: Mapping[str, Any] | None,
    used: UsedTurn | None = None,
) -> Trained:
    """The policy of a config. `searched` is what its environment said of itself, where that is known; `used` is the
    turn that a run chose.
    """
    told: Mapping[str, Any] = searched["retriever"] if searched is not None else {}
    cards = told if config.mix is not None else {"": told}
    members = {member: _member(one.rewriter, cards.get(member)) for member, one in environments(config).items()}
    return Trained(
        name,
        config,
        checkpoint,
        members,
        config.policy,
        config.search_depth,
        used or used_turn(config, None, None),
        searchable=True,
    )


def only_member(trained: Trained, env: str | None) -> Trained:
    """The policy as it is asked for one of its environments; None leaves it as it is. Raises ConfigError."""
    if env is None:
        return trained
    if trained.config.mix is None and "" in trained.members:
        raise ConfigError(f"--env is {env!r}, and {trained.name} was trained for one environment. Leave it out.")
    if env not in trained.members:
        raise ConfigError(f"--env is {env!r}; {trained.name} knows {', '.join(trained.members)}. Name one of them.")
    config = only(trained.config, env) if trained.config.mix is not None else trained.config
    return replace(trained, config=config, members={"": trained.members[env]})


def asked_of_environment(trained: Trained) -> Trained:
    """The same with the cards that no file holds, asked of the environments of the config.

    Raises as `open_environments`.
    """
    if all(member.card is not None for member in trained.members.values()):
        return trained
    from ..envs.connect import open_environments

    with open_environments(trained.config) as client:
        searched = {"retriever": client.environment().retriever}
    return replace(
        trained, members=of_config(trained.name, trained.config, trained.checkpoint, searched, trained.used).members
    )


def _searched(run: Path) -> Mapping[str, Any] | None:
    path = run / "environment.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values["retriever"], dict):
            raise TypeError("retriever is no object")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} does not say what was searched ({error}). Go on with the run (--resume), which writes it anew."
        ) from error
    found: Mapping[str, Any] = values
    return found


def _of_export(name: str, folder: Path, settings: Sequence[str], trust_remote_code: bool, token: str | None) -> Trained:
    exported = read_exported(folder)
    if exported.policy.trust_remote_code and not trust_remote_code:
        raise ModelError(
            f"{name} runs code that comes with its model. Read that code; to run it, say trust_remote_code=True "
            "(--trust-remote-code)."
        )
    if exported.lora and exported.base_model is None:
        raise ModelError(f"{name} is an adapter and does not name its base model. Export it again with --merge-lora.")
    rollout, under = exported.rollout, exported.base_model
    if exported.lora and under is not None and token is not None and _is_on_the_hub(under):
        under = str(_downloaded(under, None, token, rewriter=False))  # what loads it has no token
    policy = {
        "model": under if exported.lora else str(folder),
        "dtype": exported.policy.dtype,
        "lora": None,
        "trust_remote_code": exported.policy.trust_remote_code,
    }
    budget = rollout.max_new_tokens
    values = {
        "name": exported.run.name,
        "policy": policy,
        "rollout": {
            "branching": [1] * rollout.turns,
            "max_new_tokens": [budget[min(turn, len(budget) - 1)] for turn in range(rollout.turns)],
            **rollout.model_dump(exclude={"turns", "turn", "turn_reason", "max_new_tokens", "k"}),
        },
        "reward": {"turn_weights": [1.0] * rollout.turns},
    }
    config = validated(RunConfig, values, str(folder / FILE), settings)
    changes = [one for one in settings if one.strip().startswith("rewriter.")]
    members = {}
    for member, one in exported.members.items():
        rewriter = rewriter_of(one, folder)
        if changes:
            told = {"rewriter": rewriter.model_dump(mode="json")}
            rewriter = validated(RunConfig, told, str(folder / FILE), changes).rewriter
        _refuse_nameless_model(name, rewriter)
        members[member] = _member(rewriter, one.retriever)
    base = config.policy.model_copy(update={"model": under}) if under else config.policy
    used = UsedTurn(rollout.used_turn, rollout.turn_reason or "the export does not say, so the last turn")
    searchable = any(one.strip().startswith(("env.", "client.")) for one in settings)
    trained = Trained(name, config, folder if exported.lora else None, members, base, rollout.k, used, searchable)
    return replace(trained, base_fingerprint=exported.policy.base_fingerprint) if exported.lora else trained


def _refuse_nameless_model(name: str, rewriter: RewriterConfig) -> None:
    if rewriter.name == "hcqr" and rewriter.llm is not None and not rewriter.llm.model:
        raise ModelError(
            f"the rewriter of {name} asks a frozen model that only the machine knew which trained it. Say which one to "
            "ask: rewriter.llm.model=ID, and for one behind an endpoint rewriter.llm.base_url=URL too."
        )


def _is_on_the_hub(model: str) -> bool:
    return not Path(model).expanduser().exists() and resolve_model(model) == model


def _downloaded(name: str, revision: str | None, token: str | None, rewriter: bool = True) -> Path:
    """A Hub repository in the local cache; of a rewriter first the small file that says whether it is one at all."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
        XetDownloadError,
    )

    try:
        if rewriter:
            hf_hub_download(name, FILE, revision=revision, token=token)
        return Path(snapshot_download(name, revision=revision, token=token, ignore_patterns=_NOT_NEEDED))
    except GatedRepoError as error:
        raise ModelError(f"{name} on the Hub asks for consent first. Give it on its page and log in.") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{name} on the Hub has no revision {revision!r}. Its page lists those there are.") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{name!r} is no folder here and no repository that can be seen on the Hub. Mend the name; for a private "
            "one log in (`hf auth login`) or set HF_TOKEN."
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise DownloadError(
            f"{name!r} is no folder here, and the Hub cannot be reached ({first_line(error, 200)}). Mend the path, or "
            "try again with a connection; what has arrived is kept."
        ) from error
    except EntryNotFoundError as error:
        raise ModelError(
            f"{name} on the Hub holds no {FILE}, so it is no exported rewriter. Give one that `querylect export` wrote."
        ) from error
    except HFValidationError as error:
        raise ConfigError(f"{name!r} is no folder here and no Hub id ({first_line(error, 200)}). Mend it.") from error
    except HfHubHTTPError as error:
        raise DownloadError(f"the Hub did not give {name} ({first_line(error, 200)}). Try again later.") from error
    except (HTTPError, XetDownloadError, OSError) as error:
        raise DownloadError(
            f"{name} could not be downloaded ({first_line(error, 200)}). Look at the connection and the room on the "
            "disk and try again; what has arrived is kept."
        ) from error
