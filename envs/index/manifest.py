"""The manifest of an index, `manifest.json`: sealed with its own hash, with the hashes of all files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from ...configs.environment import SearchEngine
from ...configs.section import Strict
from ...data.corpus import Origin
from ...errors import IndexFolderError
from ...storage import data_sha256, file_sha256, parse_json
from ..recipes import RetrieverRecipe, content_fields

Description = TypeVar("Description", bound=BaseModel)

MANIFEST = "manifest.json"

LIBRARIES = (
    "numpy", "bm25s", "rank-bm25", "PyStemmer", "faiss-cpu", "faiss-gpu", "sentence-transformers",
    "transformers", "torch",
)  # fmt: skip
"""What an index can depend on."""


class FileEntry(Strict):
    """One file of an index."""

    sha256: str
    size: int
    """Bytes."""


class VectorStore(Strict):
    """How the vectors of an index are kept and searched: every setting that its files depend on."""

    dimension: int
    dtype: Literal["float32", "float16"]
    search: Literal["flat", "hnsw", "ivfpq"]
    hnsw_links: int | None = None
    hnsw_effort: int | None = None
    ivf_lists: int | None = None
    pq_bytes: int | None = None


class Manifest(Strict):
    """What an index holds."""

    format: Literal[2] = 2
    recipe: RetrieverRecipe
    engine: SearchEngine | None = None
    """What searches the index; None for retrievers with one engine."""
    model_fingerprint: str | None = None
    """Identifies models, code and other indexes; None for BM25."""
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


@dataclass(frozen=True, slots=True)
class SealedFile(Generic[Description]):
    """The file that describes a folder, with the hashes of its other files and its own."""

    name: str
    model: type[Description]
    format: int
    folder: str
    """The name of a folder with such a file, in errors."""
    remedy: str
    """What to do about an unusable folder, in errors."""

    def write(self, folder: Path, content: Description) -> None:
        """Write it into a folder, sealed with its own hash."""
        values = content.model_dump(mode="json")
        write_json(folder / self.name, {"seal": data_sha256(values), **values})

    def read(self, folder: Path, missing: str) -> Description:
        """Read what `write` wrote. `missing` says what to do where the folder has no such file.

        Raises IndexFolderError if it is missing, unreadable, of another format, or changed.
        """
        path = folder / self.name
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise IndexFolderError(f"{folder} is no {self.folder}: it holds no {self.name}. {missing}") from None
        except (OSError, ValueError) as error:
            raise self._damaged(path, f"is not readable JSON ({error})") from error
        actual = content.get("format") if isinstance(content, dict) else None
        if actual != self.format:
            raise IndexFolderError(
                f"{self.folder} {folder} has format {actual!r}; this version reads format {self.format}. {self.remedy}"
            )
        seal = content.pop("seal", None)
        try:
            opened = self.model.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise self._damaged(path, problem) from error
        if seal != data_sha256(content):
            raise self._damaged(path, "does not bear its own hash: it was changed after it was written")
        return opened

    def check_sizes(self, folder: Path, files: Mapping[str, FileEntry]) -> None:
        """Raises IndexFolderError if a file is missing or has another size. Reads no file."""
        for name, entry in files.items():
            path = folder / name
            if not path.is_file():
                raise self._damaged(path, "is missing")
            size = path.stat().st_size
            if size != entry.size:
                raise self._damaged(path, f"has {size} bytes; {self.name} says {entry.size}")

    def check_content(self, folder: Path, files: Mapping[str, FileEntry]) -> None:
        """Raises IndexFolderError if a file is missing or was changed. Reads all files."""
        self.check_sizes(folder, files)
        for name, entry in files.items():
            digest = file_sha256(folder / name)
            if digest != entry.sha256:
                problem = f"has sha256 {digest[:12]}…; {self.name} says {entry.sha256[:12]}…"
                raise self._damaged(folder / name, problem)

    def _damaged(self, path: Path, problem: str) -> IndexFolderError:
        return IndexFolderError(f"{self.folder} {path.parent} is corrupt: {path.name} {problem}. {self.remedy}")


INDEX = SealedFile(MANIFEST, Manifest, 2, "index", "Build it again: querylect index build --overwrite.")


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Size and sha256 of every file of a folder."""
    return {
        path.name: FileEntry(sha256=file_sha256(path), size=path.stat().st_size) for path in sorted(folder.iterdir())
    }


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
