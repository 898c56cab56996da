"""What an index says of itself: `manifest.json`, sealed with its own hash, and the files that it names."""

import hashlib
import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ..data.corpus import Origin
from ..data.files import file_sha256
from ..errors import IndexFolderError
from . import bm25
from .nearest import VectorStore
from .recipes import RetrieverRecipe, content_fields

Sealed = TypeVar("Sealed", bound=BaseModel)

FORMAT = 2
MANIFEST = "manifest.json"

_LIBRARIES = (
    "numpy",
    "bm25s",
    "rank-bm25",
    "PyStemmer",
    "faiss-cpu",
    "faiss-gpu-cu12",
    "sentence-transformers",
    "transformers",
    "torch",
)


class _Piece(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Piece):
    """One file of an index."""

    sha256: str
    size: int
    """Bytes."""


class Manifest(_Piece):
    """What an index holds."""

    format: Literal[2] = 2
    recipe: RetrieverRecipe
    engine: bm25.Engine | None = None
    """Which BM25 implementation; None for other retrievers."""
    model_fingerprint: str | None = None
    """What models, code and other indexes are recognised by; None for BM25."""
    vectors: VectorStore | None = None
    """How vectors are kept and searched; None where the retriever is not dense."""
    dataset: str
    licence: str
    corpus_hash: str
    """sha256 of ids, titles and texts in corpus order: that of documents.bin."""
    documents: int
    origin: Origin
    """Not part of the index hash."""
    versions: dict[str, str]
    """Libraries at build time."""
    files: dict[str, FileEntry]

    @property
    def index_hash(self) -> str:
        """sha256 of everything that a ranking depends on; equal for equal builds on any machine and path."""
        return _hash(
            {
                "format": self.format,
                "recipe": content_fields(self.recipe),
                "engine": self.engine,
                "model": self.model_fingerprint,
                "vectors": self.vectors and self.vectors.model_dump(),
                "corpus": self.corpus_hash,
                "files": {name: entry.sha256 for name, entry in sorted(self.files.items())},
            }
        )

    def write(self, folder: Path) -> None:
        """Write it into a folder, sealed."""
        write_sealed(folder / MANIFEST, self.model_dump(mode="json"))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index folder.

    Raises IndexFolderError where it is missing, cannot be read, is of another format, or was changed.
    """
    return read_sealed(
        folder / MANIFEST,
        Manifest,
        FORMAT,
        what="index",
        write="Point env.index to a folder that was written by querylect index build.",
        again="Build it again: querylect index build --overwrite.",
        unusable=corrupt,
    )


def read_sealed(
    path: Path,
    form: type[Sealed],
    wanted: int,
    *,
    what: str,
    write: str,
    again: str,
    unusable: Callable[[Path, str], IndexFolderError],
) -> Sealed:
    """What `write_sealed` wrote of the format `wanted`.

    `what` the folder is called, how one is had (`write`) and had again (`again`), and the error of a damaged file go
    into the IndexFolderError that is raised where the file is missing, cannot be read, is of another format, or was
    changed.
    """
    folder = path.parent
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IndexFolderError(f"{folder} is no {what}: it holds no {path.name}. {write}") from None
    except (OSError, ValueError) as error:
        raise unusable(path, f"is not readable JSON ({error})") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != wanted:
        raise IndexFolderError(f"{what} {folder} has format {found!r}; this version reads format {wanted}. {again}")
    seal = content.pop("seal", None)
    try:
        opened = form.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise unusable(path, f"is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if seal != _hash(content):
        raise unusable(path, "does not bear its own hash: it was changed after it was written")
    return opened


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write plain data under its own hash."""
    write_json(path, {"seal": _hash(content), **content})


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Size and sha256 of every file of a folder."""
    return {
        path.name: FileEntry(sha256=file_sha256(path), size=path.stat().st_size) for path in sorted(folder.iterdir())
    }


def check_sizes(folder: Path, files: dict[str, FileEntry]) -> None:
    """IndexFolderError where a file is missing or has another size; reads none of them."""
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise corrupt(path, "is missing")
        size = path.stat().st_size
        if size != entry.size:
            raise corrupt(path, f"has {size} bytes; the manifest says {entry.size}")


def check_content(folder: Path, files: dict[str, FileEntry]) -> None:
    """IndexFolderError where a file is missing or was changed; reads all of them."""
    check_sizes(folder, files)
    for name, entry in files.items():
        found = file_sha256(folder / name)
        if found != entry.sha256:
            raise corrupt(folder / name, f"has sha256 {found[:12]}…; the manifest says {entry.sha256[:12]}…")


def corrupt(path: Path, what: str) -> IndexFolderError:
    """The error of a damaged file."""
    return IndexFolderError(
        f"index {path.parent} is corrupt: {path.name} {what}. Build it again: querylect index build --overwrite."
    )


def write_json(path: Path, content: object) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def versions() -> dict[str, str]:
    """The installed libraries that an index can depend on."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
