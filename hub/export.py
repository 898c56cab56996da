"""From a run folder to a folder that others can use, or to a repository on the Hub."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..errors import StorageError
from .aside import only_export, placed, reason_of, refuse_strangers, refuse_the_run, said_by_the_disk
from .base import Base, base_of
from .card import README, model_card
from .datasets import dataset_ids
from .describe import describe
from .exported import Exported, ExportedResults, write_exported
from .results import find_results, refuse_unevaluated
from .snippets import Address
from .source import Source, every_checkpoint, open_source, run_identity
from .upload import MAIN, Repository
from .weights import load, refuse_lone_adapter, write_adapter, write_merged

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
"""Folder of the other checkpoints in an export to a folder."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a run is to leave."""

    merge_lora: bool = False
    """Whole weights instead of an adapter."""
    every_checkpoint: bool = False
    """The numbered checkpoints too."""
    without_evaluation: bool = False
    """Also where nothing was measured."""
    overwrite: bool = False
    """Replace what stands at the target and is no export of this run."""
    public: bool = False
    """Let everyone see a repository that is made."""
    checkpoint: str | None = None
    """Instead of the one that `querylect eval` takes."""
    base_model: str | None = None
    """Hub id of the base model, where it lies in a folder."""
    licence: str | None = None
    """Identifier of the licence, where the base does not say it."""
    example: str | None = None
    """The question of the card; None takes one that the run folder holds."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One checkpoint that leaves."""

    source: Source
    results: Mapping[str, ExportedResults]
    dtype: str | None
    """In which it was measured."""
    revision: str


def export_to_folder(run: Path, target: Path, wishes: Wishes) -> list[str]:
    """Write the export and give its path; the numbered checkpoints, where they are wished for, lie inside of it.

    Raises ConfigError where `target` holds something else or the run itself, CheckpointError and DataError as
    `results`, ModelError and CheckpointError as `load_policy`, StorageError where the disk does not take it.
    """
    base, parts = _prepare(run, wishes)
    refuse_the_run(target, run)
    if not wishes.overwrite:
        refuse_strangers(target, parts[0].source.config.name, run_identity(run))
    with only_export(run), placed(target) as place:
        for part in parts:
            inside = place if part.revision == MAIN else place / CHECKPOINTS / part.revision
            write_folder(inside, part, base, wishes, Address("."))
    return [str(target)]


def export_to_hub(run: Path, repo_id: str, wishes: Wishes, endpoint: str | None = None) -> Iterator[str]:
    """Upload the checkpoints, the main one first; gives the address of each when it is there.

    Raises as `export_to_folder`, and HubRefusedError and HubUnavailableError for what the Hub answers: then what was
    given before is complete there, and another call goes on.
    """
    base, parts = _prepare(run, wishes)
    repository = Repository(repo_id, endpoint)
    repository.open(wishes.public, run_identity(run), wishes.overwrite)
    with only_export(run):
        for part in parts:
            address = Address(repo_id, None if part.revision == MAIN else part.revision)
            there = repository.exported(part.revision)
            if there is not None and _is_there(there, part, base, wishes):
                log.info("%s of %s is there already", part.revision, repo_id)
                yield repository.address(part.revision)
                continue
            with _staging(run) as place:
                write_folder(place, part, base, wishes, address)
                name, step = part.source.checkpoint.name, part.source.step
                after = f", after {step} steps" if step is not None else ""
                repository.put(place, part.revision, f"Export {name} of the run {part.source.config.name}{after}")
            yield repository.address(part.revision)


def write_folder(place: Path, part: _Part, base: Base, wishes: Wishes, address: Address) -> Exported:
    """Write model files, `querylect.json` and card of one checkpoint into `place`. Raises as `load_policy`."""
    source, adapter = part.source, _leaves_as_adapter(part.source, wishes)
    loaded = load(source.config, source.checkpoint, part.dtype)
    place.mkdir(parents=True, exist_ok=True)
    exported = describe(source, base, loaded, part.results, place, adapter=adapter, example=wishes.example)
    new_tokens = exported.rollout.max_new_tokens[0]
    if adapter:
        write_adapter(place, loaded, source.checkpoint, base, new_tokens)
    else:
        write_merged(place, loaded, new_tokens)
    write_exported(place, exported)
    card = model_card(exported, base, dataset_ids(source.config), address, _rank(source) if adapter else None)
    (place / README).write_text(card, encoding="utf-8")
    return exported


def _prepare(run: Path, wishes: Wishes) -> tuple[Base, list[_Part]]:
    """The base model and the checkpoints that leave, the main one first; everything that can be refused early is."""
    source = open_source(run, wishes.checkpoint)
    base = base_of(source.config.policy.model, wishes.base_model, wishes.licence)
    names = every_checkpoint(run) if wishes.every_checkpoint else []
    parts = [_part(source, MAIN), *(_part(open_source(run, name), name) for name in names)]
    if not wishes.without_evaluation:
        refuse_unevaluated(source, parts[0].results)
    for part in parts:
        if _leaves_as_adapter(part.source, wishes):
            refuse_lone_adapter(base, part.source.checkpoint)
    return base, parts


def _part(source: Source, revision: str) -> _Part:
    results, dtype = find_results(source)
    return _Part(source, results, dtype, revision)


def _leaves_as_adapter(source: Source, wishes: Wishes) -> bool:
    return source.is_adapter and not wishes.merge_lora


def _rank(source: Source) -> int:
    values = json.loads((source.checkpoint / "adapter_config.json").read_text(encoding="utf-8"))
    ranks: Sequence[int] = [int(values["r"]), *(values.get("rank_pattern") or {}).values()]
    return max(ranks)


def _is_there(there: Exported, part: _Part, base: Base, wishes: Wishes) -> bool:
    """Whether the export on the Hub is the one that would be made: a commit is there whole or not at all."""
    members = there.members
    return (
        there.querylect == __version__
        and there.run.checkpoint_hash == part.source.checkpoint_hash
        and there.lora == _leaves_as_adapter(part.source, wishes)
        and (there.base_model, there.license) == (base.name, base.licence.id)
        and {name: one.results for name, one in members.items() if one.results} == dict(part.results)
        and wishes.example in (None, next(iter(members.values())).chat.question)
    )


@contextmanager
def _staging(run: Path) -> Iterator[Path]:
    """A folder beside the checkpoints, for as long as an upload takes. Raises StorageError."""
    place = run / ".exporting"
    shutil.rmtree(place, ignore_errors=True)
    try:
        place.mkdir()
    except OSError as error:
        raise StorageError(
            f"{place} cannot be made ({error.strerror}), where the export is put together. Make {run} writable, or "
            "copy the run folder to a place that is."
        ) from error
    try:
        yield place
    except Exception as error:
        if said_by_the_disk(error):
            raise StorageError(
                f"the export could not be put together in {place} ({reason_of(error)}). It needs the room of one "
                "checkpoint there: free some and give the same command again."
            ) from error
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)
