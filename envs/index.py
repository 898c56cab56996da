"""An index is a folder: `manifest.json` and the files that it names. It appears complete or not at all.

The manifest says what was indexed and how (recipe, corpus hash, model fingerprint) and holds the sha256 of every file.
Opening checks the manifest's own hash and the size of every file and reads none of them; `verify_index` reads them
all. Files are .npy arrays, texts and FAISS indexes, all memory-mapped; nothing is ever unpickled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..configs.schema import EnvironmentConfig
from ..data.corpus import Corpus
from ..data.load import corpus_hash
from ..data.types import Dataset
from ..errors import IndexFolderError
from . import bm25, dense
from .build import build_index, build_shard, merge_index
from .documents import Documents
from .held import HeldFiles
from .kinds import Retriever, leaned_on, open_kind
from .manifest import Manifest, check_content, check_sizes, read_manifest
from .recipes import RetrieverRecipe, content_fields, recipe_of

__all__ = ["Index", "build_index", "build_shard", "check_corpus", "merge_index", "open_index", "open_retriever"]
__all__ += ["verify_index", "verify_indexes"]

Opened = TypeVar("Opened")


@dataclass(frozen=True, slots=True)
class Index:
    """An index folder, what its manifest says, its documents, and all its files."""

    path: Path
    manifest: Manifest
    documents: Documents
    held: HeldFiles


def open_index(path: str | Path) -> Index:
    """Open an index folder without reading its files.

    Raises IndexFolderError for a missing folder, a manifest that is missing, unreadable, changed or of an unknown
    format, and for a file that is missing or has another size than the manifest says.
    """
    folder, manifest = _described(path)
    held = _opened(folder, partial(HeldFiles, folder, manifest.files))
    return Index(folder, manifest, _opened(folder, partial(Documents, folder)), held)


def verify_index(path: str | Path) -> Manifest:
    """Read every file of an index folder and compare its sha256. Raises IndexFolderError as `open_index`."""
    folder, manifest = _described(path)
    check_content(folder, manifest.files)
    return manifest


def verify_indexes(config: EnvironmentConfig) -> dict[str, Manifest]:
    """Verify the index of a configuration, behind those that its retriever leans on; manifests by folder.

    Raises IndexFolderError as `verify_index`, also where one of them is no longer what the index was built over.
    """
    verified: dict[str, Manifest] = {}
    members: list[Manifest] = []
    for member in leaned_on(config):
        verified |= verify_indexes(member)
        members.append(verified[member.index])
    if not members:
        return {config.index: verify_index(config.index)}
    if config.hybrid is not None:
        from .hybrid import fingerprint_of

        found = fingerprint_of(members, config.hybrid.depth)
    else:
        from .qb_rag import verified_fingerprint

        found = verified_fingerprint(config, members[0])
    manifest = verify_index(config.index)
    if manifest.model_fingerprint != found:
        raise IndexFolderError(
            f"index {config.index} was built over {manifest.model_fingerprint}; its "
            f"{'members' if config.hybrid else 'questions'} are now {found}. "
            "Build it again (querylect index build --overwrite) or point the settings to what it was built over."
        )
    return {**verified, config.index: manifest}


def check_corpus(index: Index, corpus: Corpus) -> None:
    """Refuse an index of another corpus, as far as that can be told without reading the corpus file.

    Size and time of last change are compared, and where only the time differs a fingerprint (up to 64 MiB are read).
    Raises IndexFolderError.
    """
    differs = corpus.differs(index.manifest.origin)
    if differs:
        raise _not_for(index, _corpus_of(index), f"{corpus.name!r} ({differs})")


def open_retriever(index: Index, config: EnvironmentConfig, dataset: Dataset | None = None) -> Retriever:
    """The retriever of an index, once it is certain that it was built for this configuration.

    The documents of `dataset`, where it has any, must be those of the index. Raises IndexFolderError where that is
    not so, ModelError where the encoder cannot be loaded.
    """
    manifest, recipe = index.manifest, recipe_of(config)
    _check_recipe(index, recipe, None if config.remote else config.engine)
    if dataset is not None and dataset.corpus and corpus_hash(dataset.corpus) != manifest.corpus_hash:
        found = f"{len(dataset.corpus)} documents, hash {corpus_hash(dataset.corpus)[:12]}"
        raise _not_for(index, _corpus_of(index), f"{dataset.name!r} ({found})")
    kind = open_kind(config, recipe)
    if kind is not None:
        _check_fingerprint(index, kind.fingerprint, kind.recipe)
        return _opened(index.path, partial(kind.load, index.path, index.documents))
    if recipe.kind == "bm25":
        assert manifest.engine is not None, "compared with the engine of the settings"
        return _opened(index.path, partial(bm25.load, index.path, manifest.engine))
    dense.import_faiss()
    _check_vectors(index, config)
    assert manifest.vectors is not None, "a dense index says how its vectors are kept"
    encoder = dense.Encoder.open(recipe)
    _check_fingerprint(index, encoder.fingerprint, encoder.recipe)
    return _opened(index.path, partial(dense.load, index.path, encoder, manifest.vectors, config.vectors))


def _described(path: str | Path) -> tuple[Path, Manifest]:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise IndexFolderError(f"index folder {folder} does not exist. Build it: querylect index build.")
    manifest = read_manifest(folder)
    check_sizes(folder, manifest.files)
    return folder, manifest


def _opened(folder: Path, load: Callable[[], Opened]) -> Opened:
    try:
        return load()
    except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise IndexFolderError(
            f"index {folder} cannot be read ({error}). Build it again: querylect index build --overwrite."
        ) from error


def _check_recipe(index: Index, recipe: RetrieverRecipe, engine: str | None, filled_in: bool = False) -> None:
    """What a recipe leaves to its model is compared once the model has filled it in."""
    built, wanted = content_fields(index.manifest.recipe), content_fields(recipe)
    differs = [
        field
        for field in {**wanted, **built}
        if built.get(field) != wanted.get(field) and (filled_in or wanted.get(field) is not None)
    ]
    if differs:
        field = "name" if "name" in differs else differs[0]
        raise _not_for(index, f"{field} {built.get(field)!r}", f"{field} {wanted.get(field)!r}")
    if recipe.kind == "bm25" and engine != index.manifest.engine:
        raise _not_for(index, f"engine {index.manifest.engine!r}", f"engine {engine!r}")


def _check_fingerprint(index: Index, found: str | None, filled_in: RetrieverRecipe) -> None:
    built = index.manifest.model_fingerprint
    if found != built:
        raise _not_for(index, f"other weights ({built})", f"{filled_in.model or filled_in.name} ({found})")
    _check_recipe(index, filled_in, index.manifest.engine, filled_in=True)


def _check_vectors(index: Index, config: EnvironmentConfig) -> None:
    """Compare what the files depend on; what only a search depends on (depth, probes, device) may change freely."""
    assert index.manifest.vectors is not None, "a dense index says how its vectors are kept"
    built = index.manifest.vectors.model_dump(exclude_none=True)
    wanted = config.vectors.model_dump(include=set(built), exclude_none=True)
    for field, value in wanted.items():
        if built[field] != value:
            raise _not_for(index, f"vectors.{field} {built[field]!r}", f"vectors.{field} {value!r}")


def _corpus_of(index: Index) -> str:
    manifest = index.manifest
    return f"another corpus ({manifest.dataset!r}, {manifest.documents} documents, hash {manifest.corpus_hash[:12]})"


def _not_for(index: Index, built: str, wanted: str) -> IndexFolderError:
    return IndexFolderError(
        f"index {index.path} was built with {built}; the configuration says {wanted}. "
        "Build it again (querylect index build --overwrite) or point env.index to another folder."
    )
