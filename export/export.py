"""Exports a run to a self-contained folder or to a Hub repository."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import ConfigError
from ..storage import atomic_folder, parse_json, writing
from .base import BaseModelSource, base_of
from .card import README, model_card
from .describe import describe
from .exported import write_exported
from .results import find_results, refuse_unevaluated
from .source import CheckpointSource, open_source, run_identity
from .upload import HubRepository
from .weights import load, refuse_lone_adapter, write_adapter, write_merged


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export."""

    merge_lora: bool = False
    """Export merged weights instead of an adapter."""
    without_evaluation: bool = False
    """Allow the export of a checkpoint without evaluation results."""
    overwrite: bool = False
    """Replace a target that exists; on the Hub also one that is no export of this run."""
    public: bool = False
    """Create the repository as a public one."""
    checkpoint: str | None = None
    """Overrides the checkpoint that `querylect eval` takes."""
    base_model: str | None = None
    """Hub id of a base model that is loaded from a folder."""
    licence: str | None = None
    """Licence identifier, for a base model that does not state one."""
    example: str | None = None
    """The example question of the card; None takes one from the run folder."""
    trust: bool = False
    """Use code that the run of another user names (configs/run_settings.py)."""


def export_to_folder(run: Path, target: Path, wishes: ExportOptions) -> str:
    """Write the export to `target` and return its path.

    Raises ConfigError if `target` exists, CheckpointError and DataError as `find_results`, ModelError and
    CheckpointError as `load_policy`, StorageError if it cannot be written.
    """
    resolved, folder_of_run = target.resolve(), run.resolve()
    if folder_of_run.is_relative_to(resolved) or (target.exists() and resolved.is_relative_to(folder_of_run)):
        raise ConfigError(f"--to {target} would replace the run {run}, or a part of it. Choose another folder.")
    if not wishes.overwrite and target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target} exists. Choose another --to, or replace it with --overwrite.")
    prepared = _prepare(run, wishes)
    with atomic_folder(resolved) as folder:
        _write_folder(folder, prepared, wishes, None)
    return str(target)


def export_to_hub(run: Path, repo_id: str, wishes: ExportOptions, endpoint: str | None = None) -> str:
    """Upload the export and return its address.

    Raises as `export_to_folder`, ConfigError for a repository that holds something else, and HubError. Another call
    sends only what the Hub lacks.
    """
    prepared = _prepare(run, wishes)
    source, repository = prepared.source, HubRepository(repo_id, endpoint)
    repository.open(wishes.public, run_identity(run), wishes.overwrite)
    with writing(run), TemporaryDirectory(prefix=".exporting-", dir=run) as folder:
        _write_folder(Path(folder), prepared, wishes, repo_id)
        after = f", after {source.step} steps" if source.step is not None else ""
        repository.put(Path(folder), f"Export {source.checkpoint.name} of the run {source.config.name}{after}")
    return repository.address


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is exported."""

    source: CheckpointSource
    base: BaseModelSource
    results: Mapping[str, dict[str, Any]]
    dtype: str | None
    """The dtype it was evaluated in."""
    adapter: bool
    """Whether an adapter is exported, and not whole weights."""


def _prepare(run: Path, wishes: ExportOptions) -> _Prepared:
    """What to export, after all checks that need no loaded model."""
    source = open_source(run, wishes.checkpoint, wishes.trust)
    base = base_of(source.config.policy.model, wishes.base_model, wishes.licence)
    results, dtype = find_results(source)
    if not wishes.without_evaluation:
        refuse_unevaluated(source, results)
    adapter = source.is_adapter and not wishes.merge_lora
    if adapter:
        refuse_lone_adapter(base, source.checkpoint)
    return _Prepared(source, base, results, dtype, adapter)


def _write_folder(folder: Path, prepared: _Prepared, wishes: ExportOptions, repository: str | None) -> None:
    """Write the model files, `querylect.json` and card to `folder`. Raises as `load_policy`."""
    source, base, adapter = prepared.source, prepared.base, prepared.adapter
    loaded = load(source.config.policy, source.config.rollout, source.checkpoint, prepared.dtype)
    exported = describe(source, base, loaded, prepared.results, folder, adapter=adapter, example=wishes.example)
    new_tokens = exported.rollout.max_new_tokens[0]
    if adapter:
        write_adapter(folder, loaded, source.checkpoint, base, new_tokens)
    else:
        write_merged(folder, loaded, new_tokens)
    write_exported(folder, exported)
    card = model_card(exported, base, repository, _rank(source) if adapter else None)
    (folder / README).write_text(card, encoding="utf-8")


def _rank(source: CheckpointSource) -> int:
    values = parse_json((source.checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
    ranks: Sequence[int] = [int(values["r"]), *(values.get("rank_pattern") or {}).values()]
    return max(ranks)
