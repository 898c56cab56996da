"""Builds an index: the corpus is streamed in blocks, each block becomes a part, and the parts are merged.

A part depends only on its block, and parts are merged in corpus order. So one process and several, on one machine or
several (`build_shard` in each, then `merge_index`), write the same bytes. An interrupted build resumes with its
finished parts. Memory holds one block at a time while parts are written, and the distinct words and a few integers
per document while they are merged.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...configs.schema import EnvironmentConfig
from ...data.corpus import Corpus, open_corpus
from ...data.jsonl import Span
from ...errors import ConfigError, DataError, IndexFolderError
from ...provenance import installed_versions
from ...storage import writing
from ..index import documents
from ..index.manifest import INDEX, LIBRARIES, MANIFEST, Manifest, describe_files
from ..index.open import open_index
from ..recipes import RetrieverRecipe, recipe_of
from ..retrievers.base import Kind, Progress
from ..retrievers.dense import DenseKind
from ..retrievers.open import check_corpus, open_retriever
from ..retrievers.registry import engine_of, open_kind, required_indexes
from .shards import BuildSteps, IndexShards, PartSettings

log = logging.getLogger(__name__)

BLOCK_BYTES = 8 * 2**20
"""Bytes of corpus.jsonl per part; a killed process loses at most one part."""


@dataclass(frozen=True, slots=True)
class _Build:
    corpus: Corpus
    kind: Kind
    steps: BuildSteps
    parts: IndexShards


def build_index(
    config: EnvironmentConfig,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    restart: bool = False,
) -> Manifest:
    """Build the index of the configured dataset and retriever at `config.index`.

    An existing index is replaced only with `overwrite`, and stays unchanged until the new one is complete. The
    finished parts of an interrupted build stay beside it (`.NAME.parts`) for the next one; `restart` discards them.

    Raises IndexFolderError if the folder exists (and `overwrite` is off, or it is no index) or the parts belong to
    another build; DataError, ModelError and ConfigError for the input; StorageError if the files cannot be written.
    """
    target = _target(config, overwrite)
    if restart:
        IndexShards(target).discard()
    members = required_indexes(config)
    if members:
        _build_members(members, overwrite, progress, restart)
    with writing(target):
        build = _prepare(config, target)
        try:
            _write_parts(build, range(len(build.steps.blocks)), progress)
            return _merge(config, build.parts, build.steps, build.kind, progress)
        finally:
            build.parts.tidy()


def build_shard(config: EnvironmentConfig, shard: int, shards: int, *, progress: Progress | None = None) -> int:
    """Write the parts of one shard (1 to `shards`) for `merge_index`. Returns the number of parts of the shard.

    Shards may run on several machines that share the folder of `config.index`. Raises as `build_index`.
    """
    if not 1 <= shard <= shards:
        raise ConfigError(f"shard {shard}/{shards} does not exist; give 1/{shards} to {shards}/{shards}.")
    target = _target(config, overwrite=True)
    with writing(target):
        build = _prepare(config, target)
        numbers = range(shard - 1, len(build.steps.blocks), shards)
        _write_parts(build, numbers, progress)
    return len(numbers)


def merge_index(config: EnvironmentConfig, *, overwrite: bool = False) -> Manifest:
    """Merge the parts of all shards. IndexFolderError if some are missing; otherwise raises as `build_index`."""
    target = _target(config, overwrite)
    parts = IndexShards(target)
    steps = parts.read_steps()
    if steps is None:
        raise IndexFolderError(
            f"there are no parts to merge at {parts.folder}. Write them first: querylect index build --shard 1/N."
        )
    with writing(target):
        return _merge(config, parts, steps, open_kind(config, recipe_of(config), open_retriever))


def _prepare(config: EnvironmentConfig, target: Path) -> _Build:
    corpus, kind = open_corpus(config.dataset), open_kind(config, recipe_of(config), open_retriever)
    parts, origin = IndexShards(target), corpus.origin()
    settings = _settings(config, kind.recipe, kind.fingerprint)
    previous = parts.read_steps()
    if previous is not None and (previous.settings, previous.origin) == (settings, origin):
        steps = previous
    else:
        blocks, max_documents = corpus.blocks(BLOCK_BYTES)
        steps = BuildSteps(
            settings=settings,
            dataset=corpus.name,
            licence=corpus.licence,
            origin=origin,
            blocks=[(block.start, block.end, block.line) for block in blocks],
            documents=max_documents,
        )
    parts.begin(steps)
    return _Build(corpus, kind, steps, parts)


def _settings(config: EnvironmentConfig, recipe: RetrieverRecipe, weights: str | None) -> PartSettings:
    kind = "remote" if config.remote else recipe.kind
    return PartSettings(
        engine=engine_of(config, recipe),
        dtype=config.vectors.dtype if kind == "dense" else None,
        recipe=recipe,
        weights=weights,
        versions=installed_versions(LIBRARIES),
    )


def _write_parts(build: _Build, numbers: range, progress: Progress | None) -> None:
    steps, done = build.steps, 0
    for number in numbers:
        size = build.parts.done(number)
        if size is None:

            def fill(folder: Path, number: int = number, offset: int = done) -> int:
                block = documents.write_part(folder, build.corpus.read(Span(*steps.blocks[number])))
                report = (lambda count, _: progress(offset + count, steps.documents)) if progress else None
                build.kind.write_part(folder, block, report)
                return len(block)

            size = build.parts.add(number, fill)
        done += size
        if progress:
            progress(done, steps.documents)


def _merge(
    config: EnvironmentConfig, parts: IndexShards, steps: BuildSteps, kind: Kind, progress: Progress | None = None
) -> Manifest:
    sizes = {number: parts.done(number) for number in range(len(steps.blocks))}
    missing = [number for number, size in sizes.items() if size is None]
    if missing:
        raise IndexFolderError(
            f"{len(missing)} of {len(sizes)} parts are missing in {parts.folder}, the first is number {missing[0]}. "
            "Run the shards that have not finished again: querylect index build --shard i/N."
        )
    if open_corpus(config.dataset).origin() != steps.origin:
        raise DataError(
            f"the corpus of {steps.dataset!r} was changed while it was indexed. Build anew: querylect index build "
            "--restart."
        )
    total = sum(size or 0 for size in sizes.values())
    if not total:
        raise DataError(f"dataset {steps.dataset!r} holds no documents; there is nothing to index. Check env.dataset.")
    # an empty block (a line longer than a block ends in the next but one) has no vocabulary and no vectors
    folders = [parts.path(number) for number, size in sizes.items() if size]
    with parts.staged() as folder:
        log.info("merging %d parts with %d documents", len(folders), total)
        documents.merge(folders, folder)
        kind.merge(folders, folder)
        files = describe_files(folder)
        manifest = Manifest(
            recipe=steps.settings.recipe,
            engine=steps.settings.engine,
            model_fingerprint=steps.settings.weights,
            vectors=kind.vectors if isinstance(kind, DenseKind) else None,
            dataset=steps.dataset,
            licence=steps.licence,
            corpus_hash=files[documents.RECORDS].sha256,
            documents=total,
            origin=steps.origin,
            versions=steps.settings.versions,
            files=files,
        )
        INDEX.write(folder, manifest)
    if progress:
        progress(total, total)
    return manifest


def _build_members(
    members: Sequence[EnvironmentConfig], overwrite: bool, progress: Progress | None, restart: bool
) -> None:
    """Build the members' indexes. An existing one is kept if it fits, and replaced only with `overwrite`."""
    for member in members:
        if not Path(member.index).expanduser().exists():
            build_index(member, progress=progress, restart=restart)
            continue
        try:
            index = open_index(member.index)
            check_corpus(index, open_corpus(member.dataset))
            open_retriever(index, member)
        except IndexFolderError:
            if not overwrite:
                raise
            build_index(member, overwrite=True, progress=progress, restart=restart)


def _target(config: EnvironmentConfig, overwrite: bool) -> Path:
    target = config.index_folder
    if not target.exists():
        return target
    if not overwrite:
        raise IndexFolderError(f"{target} exists already. Replace it with --overwrite, or name another folder.")
    if not (target / MANIFEST).is_file() and not (target.is_dir() and not any(target.iterdir())):
        raise IndexFolderError(
            f"{target} is not an index (it holds no {MANIFEST}) and is not overwritten. Name another folder."
        )
    return target
