"""Builds an index: the corpus is streamed in blocks, each block becomes a part, and the parts are merged.

A part depends only on its block, and parts are merged in corpus order. So one process and several, on one machine or
several (`build_shard` in each, then `merge_index`), build the same index. Finished parts lie in a hidden folder beside
the index (`.NAME.parts`); an interrupted build resumes with them. Memory holds one block at a time while parts are
written, and all words of the corpus as integers while they are merged.
"""

import logging
import shutil
from pathlib import Path

from ..configs.schema import EnvironmentConfig
from ..data.corpus import Corpus
from ..data.rows import Span
from ..errors import ConfigError, DataError, IndexFolderError
from ..logs import Progress
from ..provenance import installed_versions
from ..storage import atomic_folder, only_command, write_text
from .index import (
    LIBRARIES,
    META,
    RECORDS,
    IndexMeta,
    IndexSource,
    hashes_of,
    merge_documents,
    open_index,
    part_size,
    write_documents,
    write_json,
)
from .presets import required_indexes
from .retrievers.open import check_corpus, open_factory, open_retriever

log = logging.getLogger(__name__)

BLOCK_BYTES = 8 * 2**20
"""Bytes of corpus.jsonl per part; a killed process loses at most one part."""
_STEPS = "steps.json"


class BuildSteps(IndexSource):
    """What a build indexes and how it is cut into parts. Equal for every process of one build."""

    blocks: list[tuple[int, int | None, int]]
    """Start, end and first line of each block of the corpus, one part each."""
    documents: int
    """Documents at most: lines of the corpus file, blank ones included."""


def build_index(config: EnvironmentConfig, *, overwrite: bool = False, progress: Progress | None = None) -> IndexMeta:
    """Build the index of the configured dataset and retriever at `config.index`, and those that it needs.

    An existing index is replaced only with `overwrite`, and stays unchanged until the new one is complete. The
    finished parts of an interrupted build are used. An existing index of a hybrid's member is kept if it fits.

    Raises IndexFolderError if the folder exists (and `overwrite` is off, or it is no index) or the parts belong to
    another build; DataError, ModelError and ConfigError for the input; StorageError if the files cannot be written.
    """
    _target(config, overwrite)
    for member in required_indexes(config):
        if not _has_fitting_index(member, overwrite):
            build_index(member, overwrite=overwrite, progress=progress)
    build_shard(config, 1, 1, progress=progress)
    return merge_index(config, overwrite=overwrite, progress=progress)


def build_shard(config: EnvironmentConfig, shard: int, shards: int, *, progress: Progress | None = None) -> int:
    """Write the parts of one shard (1 to `shards`) for `merge_index`. Returns the number of parts of the shard.

    Shards may run on several machines that share the folder of `config.index`. Raises as `build_index`.
    """
    if not 1 <= shard <= shards:
        raise ConfigError(f"shard {shard}/{shards} does not exist; give 1/{shards} to {shards}/{shards}.")
    corpus, factory, parts = Corpus(config.dataset), open_factory(config), _parts_of(_target(config, overwrite=True))
    source = IndexSource(
        preset=factory.preset,
        settings=factory.settings,
        dataset=corpus.name,
        licence=corpus.licence,
        origin=corpus.origin(),
        versions=installed_versions(LIBRARIES),
    )
    done = 0

    def report(count: int, _: int = 0) -> None:
        if progress:
            progress(done + count, steps.documents)

    try:
        steps = _begin(parts, source, corpus)
        numbers = range(shard - 1, len(steps.blocks), shards)
        for number in numbers:
            part = parts / f"{number:06}"
            if not part.exists():
                with atomic_folder(part) as folder:
                    block = list(corpus.read(Span(*steps.blocks[number])))
                    write_documents(folder, block)
                    factory.write_part(folder, block, report)
            done += part_size(part)
            report(0)
    finally:
        if not any(parts.glob("*[0-9]*")):
            shutil.rmtree(parts, ignore_errors=True)
    return len(numbers)


def _begin(parts: Path, source: IndexSource, corpus: Corpus) -> BuildSteps:
    """The steps of a new build, or of a started one from the same source; IndexFolderError if it has another."""
    steps = _read_steps(parts)
    if steps is None:
        blocks, lines = corpus.blocks(BLOCK_BYTES)
        spans = [(block.start, block.end, block.line) for block in blocks]
        steps = BuildSteps(**dict(source), blocks=spans, documents=lines)
        write_text(parts / _STEPS, steps.model_dump_json())
    names = [*source.settings, *steps.settings]
    differs = [name for name in dict.fromkeys(names) if steps.settings.get(name) != source.settings.get(name)]
    differs += [name for name in ("origin", "versions") if getattr(steps, name) != getattr(source, name)]
    if differs:
        raise IndexFolderError(
            f"{parts} holds parts of an interrupted build with another {' and '.join(differs)}. "
            "Go on with the settings of that build, or delete that folder to begin anew."
        )
    return steps


def merge_index(config: EnvironmentConfig, *, overwrite: bool = False, progress: Progress | None = None) -> IndexMeta:
    """Merge the parts of all shards. IndexFolderError if some are missing; otherwise raises as `build_index`."""
    target = _target(config, overwrite)
    parts = _parts_of(target)
    steps = _read_steps(parts)
    if steps is None:
        raise IndexFolderError(
            f"there are no parts to merge at {parts}. Write them first: querylect index build --shard 1/N."
        )
    folders = [parts / f"{number:06}" for number in range(len(steps.blocks))]
    if missing := [number for number, folder in enumerate(folders) if not folder.exists()]:
        raise IndexFolderError(
            f"{len(missing)} of {len(folders)} parts are missing in {parts}, the first is number {missing[0]}. "
            "Run the shards that have not finished again: querylect index build --shard i/N."
        )
    if Corpus(config.dataset).origin() != steps.origin:
        raise DataError(
            f"the corpus of {steps.dataset!r} was changed while it was indexed. Delete {parts}, build anew."
        )
    # an empty block (a line longer than a block ends in the next but one) has no words and no vectors
    filled = [folder for folder in folders if part_size(folder)]
    if not filled:
        raise DataError(f"dataset {steps.dataset!r} holds no documents; there is nothing to index. Check env.dataset.")
    factory = open_factory(config)
    with only_command(parts):
        with atomic_folder(target) as folder:
            log.info("merging %d parts", len(filled))
            total = merge_documents(filled, folder)
            factory.merge(filled, folder)
            files = hashes_of(folder)
            source = {name: value for name, value in steps if name in IndexSource.model_fields}
            meta = IndexMeta(**source, documents=total, corpus_hash=files[RECORDS], files=files)
            write_json(folder / META, meta.model_dump(mode="json"))
        discarded = parts.with_suffix(".discarded")
        shutil.rmtree(discarded, ignore_errors=True)
        parts.rename(discarded)  # at once: no later build finds half of the parts
        shutil.rmtree(discarded)
    if progress:
        progress(total, total)
    return meta


def _has_fitting_index(member: EnvironmentConfig, overwrite: bool) -> bool:
    """IndexFolderError for one that does not fit, unless it may be overwritten."""
    if not member.index_folder.exists():
        return False
    try:
        index = open_index(member.index)
        check_corpus(index, Corpus(member.dataset))
        open_retriever(index, member)
    except IndexFolderError:
        if not overwrite:
            raise
        return False
    return True


def _target(config: EnvironmentConfig, overwrite: bool) -> Path:
    target = config.index_folder
    if target.exists() and not overwrite:
        raise IndexFolderError(f"{target} exists already. Replace it with --overwrite, or name another folder.")
    if target.exists() and not config.has_index and not (target.is_dir() and not any(target.iterdir())):
        raise IndexFolderError(
            f"{target} is not an index (it holds no {META}) and is not overwritten. Name another folder."
        )
    return target


def _parts_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.parts")


def _read_steps(parts: Path) -> BuildSteps | None:
    try:
        return BuildSteps.model_validate_json((parts / _STEPS).read_bytes())
    except FileNotFoundError:
        return None
