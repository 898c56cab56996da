"""The manifest of an index, `manifest.json`, with the hashes of all files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel

from ...configs.environment import SearchEngine
from ...configs.section import Strict
from ...data.corpus import Origin
from ...errors import IndexFolderError
from ...storage import data_sha256, file_sha256
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
    """How the vectors of an index are kept and searched."""

    dimension: int
    dtype: Literal["float32", "float16"]
    search: Literal["flat", "hnsw", "ivfpq"]


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
class DescriptionFile(Generic[Description]):
    """The file that describes a folder, with the hashes of its other files."""

    name: str
    model: type[Description]
    folder: str
    """The name of a folder with such a file, in errors."""
    remedy: str
    """What to do about an unusable folder, in errors."""

    def write(self, folder: Path, content: Description) -> None:
        write_json(folder / self.name, content.model_dump(mode="json"))

    def read(self, folder: Path, missing: str) -> Description:
        """Read what `write` wrote. `missing` says what to do where the folder has no such file.

        Raises IndexFolderError if it is missing, or not one of this version.
        """
        path = folder / self.name
        try:
            return self.model.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise IndexFolderError(f"{folder} is no {self.folder}: it holds no {self.name}. {missing}") from None
        except (OSError, ValueError) as error:
            raise IndexFolderError(f"{path} cannot be read ({error}). {self.remedy}") from error

    def verify(self, folder: Path, files: Mapping[str, FileEntry]) -> None:
        """Read all files. Raises IndexFolderError if one is missing or has another sha256."""
        for name, entry in files.items():
            path = folder / name
            digest = file_sha256(path) if path.is_file() else "none"
            if digest != entry.sha256:
                raise IndexFolderError(
                    f"{self.folder} {folder} is damaged: {name} has sha256 {digest[:12]}…; {self.name} says "
                    f"{entry.sha256[:12]}…. {self.remedy}"
                )


INDEX = DescriptionFile(MANIFEST, Manifest, "index", "Build it again: querylect index build --overwrite.")


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Size and sha256 of every file of a folder."""
    return {
        path.name: FileEntry(sha256=file_sha256(path), size=path.stat().st_size) for path in sorted(folder.iterdir())
    }


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
