"""An index is a folder: `manifest.json` and the files that it names. It appears complete or not at all.

The manifest says what was indexed and how (recipe, corpus hash, model fingerprint) and holds the sha256 of every
file, so that a service never answers from a damaged index or from another corpus. Files are .npy arrays and JSON;
nothing is ever unpickled.
"""

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..configs.schema import EnvironmentConfig
from ..data.load import corpus_hash, load_dataset
from ..data.types import Dataset
from ..errors import DataError, IndexFolderError, StorageError
from . import bm25, dense
from .hashing import file_sha256
from .kinds import Retriever, open_kind
from .recipes import RetrieverRecipe, content_fields, recipe_of

FORMAT = 1
MANIFEST = "manifest.json"
IDS = "ids.json"

Progress = Callable[[int, int], None]
"""Called with (documents done, documents in all)."""

_LIBRARIES = ("numpy", "bm25s", "rank-bm25", "PyStemmer", "sentence-transformers", "transformers", "torch")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Part):
    """One file of an index."""

    sha256: str
    size: int
    """Bytes."""


class Manifest(_Part):
    """What an index holds."""

    format: Literal[1] = 1
    recipe: RetrieverRecipe
    engine: bm25.Engine | None = None
    """Which BM25 implementation; None for dense retrievers."""
    model_fingerprint: str | None = None
    """sha256 of the encoder's folder, or Hub id and commit; None for BM25."""
    dataset: str
    licence: str
    corpus_hash: str
    documents: int
    versions: dict[str, str]
    """Libraries at build time."""
    files: dict[str, FileEntry]

    @property
    def index_hash(self) -> str:
        """sha256 of everything that a ranking depends on; equal for equal builds on any machine and path."""
        content = {
            "format": self.format,
            "recipe": content_fields(self.recipe),
            "engine": self.engine,
            "model": self.model_fingerprint,
            "corpus": self.corpus_hash,
            "files": {name: entry.sha256 for name, entry in sorted(self.files.items())},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Index:
    """An index folder and what its manifest says."""

    path: Path
    manifest: Manifest


def build_index(config: EnvironmentConfig, *, overwrite: bool = False, progress: Progress | None = None) -> Manifest:
    """Build the index of the configured dataset and retriever at `config.index`.

    Everything is written to a temporary folder beside it and renamed at the end; an existing index is replaced only
    with `overwrite`, and stays as it is until the new one is complete. A failed or interrupted build leaves nothing.

    Raises IndexFolderError where the folder exists (and `overwrite` is off, or it is no index), DataError, ModelError
    and ConfigError for the input, StorageError where the disk does not take the files.
    """
    target = Path(config.index).expanduser()
    _check_target(target, overwrite)
    recipe = recipe_of(config)
    dataset = load_dataset(config.dataset)
    if not dataset.corpus:
        raise DataError(f"dataset {dataset.name!r} holds no documents; there is nothing to index. Check env.dataset.")
    if recipe.kind == "hybrid":
        _build_members(config, overwrite, progress)
    kind, encoder = open_kind(config, recipe), None
    if kind is None and recipe.kind == "dense":
        dense.import_faiss()
        encoder = dense.Encoder.open(recipe)
    with _staged(target) as folder:
        if kind is not None:
            part = folder / "part"
            part.mkdir()
            kind.write_part(part, dataset.corpus, progress)
            kind.merge([part], folder)
            shutil.rmtree(part)
        elif encoder is None:
            bm25.write(folder, [document.contents for document in dataset.corpus], config.engine, progress)
        else:
            dense.write(folder, [recipe.content_of(document) for document in dataset.corpus], encoder, progress)
        _write_json(folder / IDS, [document.id for document in dataset.corpus])
        opened = kind or encoder
        manifest = Manifest(
            recipe=opened.recipe if opened else recipe,
            engine=None if opened else config.engine,
            model_fingerprint=opened.fingerprint if opened else None,
            dataset=dataset.name,
            licence=dataset.licence,
            corpus_hash=corpus_hash(dataset.corpus),
            documents=len(dataset.corpus),
            versions=_versions(),
            files={
                path.name: FileEntry(sha256=file_sha256(path), size=path.stat().st_size)
                for path in sorted(folder.iterdir())
            },
        )
        _write_json(folder / MANIFEST, manifest.model_dump())
    return manifest


def open_index(path: str | Path, verify: bool = True) -> Index:
    """Read the manifest of an index folder; `verify` also compares size and sha256 of every file.

    Raises IndexFolderError for a missing folder, a missing or unreadable manifest, an unknown format, and (with
    `verify`) for a file that is missing or was changed.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise IndexFolderError(f"index folder {folder} does not exist. Build it: querylect index build.")
    manifest = _read_manifest(folder)
    if verify:
        for name, entry in manifest.files.items():
            _check_file(folder / name, entry)
    return Index(folder, manifest)


def verify_index(path: str | Path) -> Manifest:
    """Check every file of an index folder against its manifest. Raises IndexFolderError as `open_index`."""
    return open_index(path, verify=True).manifest


def open_retriever(index: Index, config: EnvironmentConfig, dataset: Dataset) -> Retriever:
    """The retriever of an index, once it is certain that it was built for this configuration and this corpus.

    Raises IndexFolderError where it was not, ModelError where the encoder cannot be loaded.
    """
    manifest, recipe = index.manifest, recipe_of(config)
    _check_recipe(index, recipe, None if config.remote else config.engine)
    _check_corpus(index, dataset)
    kind = open_kind(config, recipe)
    if kind is None and recipe.kind == "bm25":
        assert manifest.engine is not None, "compared with the engine of the settings"
        return _opened(index, partial(bm25.load, index.path, manifest.engine))
    if kind is not None:
        _check_fingerprint(index, kind.fingerprint, kind.recipe)
        return _opened(index, partial(kind.load, index.path, dataset))
    dense.import_faiss()
    encoder = dense.Encoder.open(recipe)
    _check_fingerprint(index, encoder.fingerprint, encoder.recipe)
    return _opened(index, partial(dense.load, index.path, encoder))


def _build_members(config: EnvironmentConfig, overwrite: bool, progress: Progress | None) -> None:
    """Build the members' indexes. One that stands already is kept where it fits, and replaced only with `overwrite`."""
    from .hybrid import member_settings

    for member in member_settings(config):
        if not Path(member.index).expanduser().exists():
            build_index(member, progress=progress)
            continue
        try:
            open_retriever(open_index(member.index), member, load_dataset(member.dataset))
        except IndexFolderError:
            if not overwrite:
                raise
            build_index(member, overwrite=True, progress=progress)


def _opened(index: Index, load: Callable[[], Retriever]) -> Retriever:
    try:
        return load()
    except (OSError, ValueError, KeyError) as error:
        raise IndexFolderError(
            f"index {index.path} cannot be read ({error}). Build it again: querylect index build --overwrite."
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


def _check_corpus(index: Index, dataset: Dataset) -> None:
    found = corpus_hash(dataset.corpus)
    if found != index.manifest.corpus_hash:
        raise _not_for(
            index,
            f"another corpus ({index.manifest.dataset!r}, {index.manifest.documents} documents, "
            f"hash {index.manifest.corpus_hash[:12]})",
            f"{dataset.name!r} ({len(dataset.corpus)} documents, hash {found[:12]})",
        )


def _not_for(index: Index, built: str, wanted: str) -> IndexFolderError:
    return IndexFolderError(
        f"index {index.path} was built with {built}; the configuration says {wanted}. "
        "Build it again (querylect index build --overwrite) or point env.index to another folder."
    )


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IndexFolderError(
            f"{folder} is no index: it holds no {MANIFEST}. Point env.index to a folder that was written by "
            "querylect index build."
        ) from None
    except (OSError, ValueError) as error:
        raise _corrupt(path, f"is not readable JSON ({error})") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise IndexFolderError(
            f"index {folder} has format {found!r}; this version reads format {FORMAT}. "
            "Build it again: querylect index build --overwrite."
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise _corrupt(path, f"is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _check_file(path: Path, entry: FileEntry) -> None:
    if not path.is_file():
        raise _corrupt(path, "is missing")
    size = path.stat().st_size
    if size != entry.size:
        raise _corrupt(path, f"has {size} bytes; the manifest says {entry.size}")
    found = file_sha256(path)
    if found != entry.sha256:
        raise _corrupt(path, f"has sha256 {found[:12]}…; the manifest says {entry.sha256[:12]}…")


def _corrupt(path: Path, what: str) -> IndexFolderError:
    return IndexFolderError(
        f"index {path.parent} is corrupt: {path.name} {what}. Build it again: querylect index build --overwrite."
    )


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not overwrite:
        raise IndexFolderError(f"{target} exists already. Replace it with --overwrite, or name another folder.")
    if not (target / MANIFEST).is_file() and not (target.is_dir() and not any(target.iterdir())):
        raise IndexFolderError(
            f"{target} is not an index (it holds no {MANIFEST}) and is not overwritten. Name another folder."
        )


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its place when the block ends well, and is gone otherwise."""
    unique = f".{target.name}.{secrets.token_hex(4)}"
    staging, replaced = target.with_name(f"{unique}.building"), target.with_name(f"{unique}.replaced")
    try:
        staging.mkdir(parents=True)
        yield staging
        try:
            if target.exists():
                target.rename(replaced)
            staging.rename(target)
        except BaseException:
            if replaced.exists() and not target.exists():
                replaced.rename(target)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise StorageError(
            f"index {target} could not be written ({error}); nothing was left behind. "
            "Free some space or point env.index to a folder that can be written."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
