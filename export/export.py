"""Exports a run to a self-contained folder or to a Hub repository."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ..configs.mix import environments
from ..errors import ConfigError
from ..storage import new_folder, parse_json, writing
from .base import BaseModelSource, base_of
from .card import README, Address, model_card
from .describe import describe
from .exported import ExportedResults, write_exported
from .results import find_results, refuse_unevaluated
from .source import CheckpointSource, dataset_ids, every_checkpoint, open_source, run_identity
from .upload import MAIN, HubRepository
from .weights import load, refuse_lone_adapter, write_adapter, write_merged

CHECKPOINTS = "checkpoints"
"""Subfolder of the numbered checkpoints in an export to a folder."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export."""

    merge_lora: bool = False
    """Export merged weights instead of an adapter."""
    every_checkpoint: bool = False
    """Export the numbered checkpoints too."""
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
    """Use code that the run of another user names (configs/trust.py)."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One checkpoint to export."""

    source: CheckpointSource
    results: Mapping[str, ExportedResults]
    dtype: str | None
    """The dtype it was evaluated in."""
    revision: str


def export_to_folder(run: Path, target: Path, wishes: ExportOptions) -> list[str]:
    """Write the export to `target` and return its path. Numbered checkpoints, if requested, go into a subfolder.

    Raises ConfigError if `target` exists, CheckpointError and DataError as `find_results`, ModelError and
    CheckpointError as `load_policy`, StorageError if it cannot be written.
    """
    resolved = target.resolve()
    if run.resolve().is_relative_to(resolved):
        raise ConfigError(f"--to {target} would replace the run {run}. Choose another folder.")
    if not wishes.overwrite and target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target} exists. Choose another --to, or replace it with --overwrite.")
    base, parts = _prepare(run, wishes)
    with new_folder(resolved, "the export") as folder:
        for part in parts:
            subfolder = folder if part.revision == MAIN else folder / CHECKPOINTS / part.revision
            write_folder(subfolder, part, base, wishes, Address("."))
    return [str(target)]


def export_to_hub(run: Path, repo_id: str, wishes: ExportOptions, endpoint: str | None = None) -> Iterator[str]:
    """Upload the checkpoints, the main one first, and yield the address of each after its upload.

    Raises as `export_to_folder`, ConfigError for a repository that holds something else, and HubError. The addresses
    yielded before an error are complete; another call sends only what the Hub lacks.
    """
    base, parts = _prepare(run, wishes)
    repository = HubRepository(repo_id, endpoint)
    repository.open(wishes.public, run_identity(run), wishes.overwrite)
    for part in parts:
        address = Address(repo_id, None if part.revision == MAIN else part.revision)
        room = "It needs the room of one checkpoint in the run folder."
        with writing(run, room), TemporaryDirectory(prefix=".exporting-", dir=run) as folder:
            write_folder(Path(folder), part, base, wishes, address)
            name, step = part.source.checkpoint.name, part.source.step
            after = f", after {step} steps" if step is not None else ""
            repository.put(Path(folder), part.revision, f"Export {name} of the run {part.source.config.name}{after}")
        yield repository.address(part.revision)


def write_folder(folder: Path, part: _Part, base: BaseModelSource, wishes: ExportOptions, address: Address) -> None:
    """Write the model files, `querylect.json` and card of one checkpoint to `folder`. Raises as `load_policy`."""
    source, adapter = part.source, _exports_adapter(part.source, wishes)
    loaded = load(source.config.policy, source.config.rollout, source.checkpoint, part.dtype)
    folder.mkdir(parents=True, exist_ok=True)
    exported = describe(source, base, loaded, part.results, folder, adapter=adapter, example=wishes.example)
    new_tokens = exported.rollout.max_new_tokens[0]
    if adapter:
        write_adapter(folder, loaded, source.checkpoint, base, new_tokens)
    else:
        write_merged(folder, loaded, new_tokens)
    write_exported(folder, exported)
    datasets = dataset_ids(member.env.dataset for member in environments(source.config).values())
    card = model_card(exported, base, datasets, address, _rank(source) if adapter else None)
    (folder / README).write_text(card, encoding="utf-8")


def _prepare(run: Path, wishes: ExportOptions) -> tuple[BaseModelSource, list[_Part]]:
    """The base model and the checkpoints to export, the main one first, after all checks that need no loaded model."""
    source = open_source(run, wishes.checkpoint, wishes.trust)
    base = base_of(source.config.policy.model, wishes.base_model, wishes.licence)
    names = every_checkpoint(run) if wishes.every_checkpoint else []
    parts = [_part(source, MAIN), *(_part(open_source(run, name, wishes.trust), name) for name in names)]
    if not wishes.without_evaluation:
        refuse_unevaluated(source, parts[0].results)
    for part in parts:
        if _exports_adapter(part.source, wishes):
            refuse_lone_adapter(base, part.source.checkpoint)
    return base, parts


def _part(source: CheckpointSource, revision: str) -> _Part:
    results, dtype = find_results(source)
    return _Part(source, results, dtype, revision)


def _exports_adapter(source: CheckpointSource, wishes: ExportOptions) -> bool:
    return source.is_adapter and not wishes.merge_lora


def _rank(source: CheckpointSource) -> int:
    values = parse_json((source.checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
    ranks: Sequence[int] = [int(values["r"]), *(values.get("rank_pattern") or {}).values()]
    return max(ranks)
