"""The manifest of an index, `manifest.json`: sealed with its own hash, with the hashes of all files."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ...configs.environment import SearchEngine
from ...data.corpus import Origin
from ...errors import IndexFolderError
from ...storage import data_sha256, file_sha256, parse_json
from ..retrievers.nearest import VectorStore
from ..retrievers.recipes import RetrieverRecipe, content_fields

Sealed = TypeVar("Sealed", bound=BaseModel)
MakeError = Callable[[Path, str], IndexFolderError]
"""The error for a file, and what is wrong with it."""

FORMAT = 2
MANIFEST = "manifest.json"

LIBRARIES = (
    "numpy", "bm25s", "rank-bm25", "PyStemmer", "faiss-cpu", "faiss-gpu-cu12", "sentence-transformers",
    "transformers", "torch",
)  # fmt: skip
"""What an index can depend on."""


class StrictModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(StrictModel):
    """One file of an index."""

    sha256: str
    size: int
    """Bytes."""


class Manifest(StrictModel):
    """What an index holds."""

    format: Literal[2] = 2
    recipe: RetrieverRecipe
    engine: SearchEngine | None = None
    """What searches the index; None for retrievers with one engine."""
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
        return data_sha256(
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


def corrupt(path: Path, problem: str) -> IndexFolderError:
    return IndexFolderError(
        f"index {path.parent} is corrupt: {path.name} {problem}. Build it again: querylect index build --overwrite.",
        code="damaged-index",
    )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index folder.

    Raises IndexFolderError if it is missing, unreadable, of another format, or changed.
    """
    return read_sealed(
        folder / MANIFEST,
        Manifest,
        FORMAT,
        label="index",
        create_hint="Point env.index to a folder that was written by querylect index build.",
        rebuild_hint="Build it again: querylect index build --overwrite.",
        make_error=corrupt,
    )


def read_sealed(
    path: Path,
    model: type[Sealed],
    expected_format: int,
    *,
    label: str,
    create_hint: str,
    rebuild_hint: str,
    make_error: MakeError,
) -> Sealed:
    """Read what `write_sealed` wrote, of the format number `expected_format`.

    Raises IndexFolderError if the file is missing, unreadable, of another format, or changed. Its message names the
    folder by `label` and ends with `create_hint` or `rebuild_hint`; `make_error` makes the error for a damaged file.
    """
    folder = path.parent
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IndexFolderError(
            f"{folder} is no {label}: it holds no {path.name}. {create_hint}", code="not-an-index"
        ) from None
    except (OSError, ValueError) as error:
        raise make_error(path, f"is not readable JSON ({error})") from error
    actual = content.get("format") if isinstance(content, dict) else None
    if actual != expected_format:
        raise IndexFolderError(
            f"{label} {folder} has format {actual!r}; this version reads format {expected_format}. {rebuild_hint}",
            code="other-format",
        )
    seal = content.pop("seal", None)
    try:
        opened = model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise make_error(path, f"is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if seal != data_sha256(content):
        raise make_error(path, "does not bear its own hash: it was changed after it was written")
    return opened


def write_sealed(path: Path, content: dict[str, object]) -> None:
    """Write JSON data together with its own hash."""
    write_json(path, {"seal": data_sha256(content), **content})


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Size and sha256 of every file of a folder."""
    return {
        path.name: FileEntry(sha256=file_sha256(path), size=path.stat().st_size) for path in sorted(folder.iterdir())
    }


def check_sizes(folder: Path, files: Mapping[str, FileEntry], make_error: MakeError = corrupt) -> None:
    """Raises IndexFolderError if a file is missing or has another size. Reads no file."""
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise make_error(path, "is missing")
        size = path.stat().st_size
        if size != entry.size:
            raise make_error(path, f"has {size} bytes; the manifest says {entry.size}")


def check_content(folder: Path, files: Mapping[str, FileEntry], make_error: MakeError = corrupt) -> None:
    """Raises IndexFolderError if a file is missing or was changed. Reads all files."""
    check_sizes(folder, files, make_error)
    for name, entry in files.items():
        digest = file_sha256(folder / name)
        if digest != entry.sha256:
            raise make_error(folder / name, f"has sha256 {digest[:12]}…; the manifest says {entry.sha256[:12]}…")


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
