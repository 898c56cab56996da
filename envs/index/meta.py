"""An index: a folder with `meta.json` and the files that it names, renamed into place whole.

`meta.json` records what was indexed and how, and the sha256 of every file. Opening reads no other file; `verify` reads
them all. Files are .npy arrays, texts and FAISS indexes, all memory-mapped; nothing is ever unpickled.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from ...configs.section import Strict
from ...data.corpus import Origin
from ...errors import IndexFolderError, in_one_line
from ...storage import data_sha256, file_sha256
from ..presets import RetrieverPreset
from .documents import Documents

Description = TypeVar("Description", bound=BaseModel)

META = "meta.json"

LIBRARIES = (
    "numpy", "bm25s", "rank-bm25", "PyStemmer", "faiss-cpu", "faiss-gpu", "sentence-transformers",
    "transformers", "torch",
)  # fmt: skip
"""What an index can depend on."""


class IndexSource(Strict):
    """What an index is built from."""

    preset: RetrieverPreset
    settings: dict[str, object]
    """What files and rankings depend on besides the corpus: see `index_settings`."""
    dataset: str
    licence: str
    origin: Origin
    """Of the corpus file. Not part of the index hash."""
    versions: dict[str, str]
    """Libraries at build time. Not part of the index hash."""


class IndexMeta(IndexSource):
    """What an index holds."""

    documents: int
    corpus_hash: str
    """sha256 of ids, titles and texts in corpus order: that of documents.bin."""
    files: dict[str, str]
    """sha256 of each file."""

    @property
    def index_hash(self) -> str:
        """sha256 of everything that a ranking depends on; equal for equal builds on any machine and path."""
        return data_sha256([self.settings, self.corpus_hash, self.files])


@dataclass(frozen=True, slots=True)
class Index:
    """An opened index folder."""

    path: Path
    meta: IndexMeta
    documents: Documents


def open_index(path: str | Path) -> Index:
    """Open an index folder without reading its files. Raises as `read_meta`, and where a file is missing or cut."""
    folder = Path(path).expanduser()
    with whole(folder):
        return Index(folder, read_meta(folder), Documents(folder))


@contextmanager
def whole(folder: Path) -> Iterator[None]:
    """IndexFolderError where a file of an index that is opened in this block is missing or cut."""
    try:
        yield
    except (OSError, ValueError, EOFError) as error:
        raise IndexFolderError(
            f"{folder} is damaged ({in_one_line(error)}). See which files are (querylect index verify), copy it again, "
            "or build it again: querylect index build --overwrite."
        ) from error


def verify_index(path: str | Path) -> IndexMeta:
    """Read every file of an index folder and compare its sha256. Raises IndexFolderError."""
    folder = Path(path).expanduser()
    meta = read_meta(folder)
    verify_files(folder, meta.files, "Build the index again: querylect index build --overwrite.")
    return meta


def read_meta(folder: Path) -> IndexMeta:
    """What an index holds. IndexFolderError if it is missing, or not one of this version."""
    remedy = "Build the index, or point env.index to one: querylect index build [--overwrite]."
    return read_description(folder / META, IndexMeta, remedy)


def read_description(path: Path, model: type[Description], remedy: str) -> Description:
    """The JSON file that describes a folder. IndexFolderError, ending with `remedy`, if it cannot be read."""
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise IndexFolderError(f"{path} cannot be read ({in_one_line(error)}). {remedy}") from error


def verify_files(folder: Path, files: Mapping[str, str], remedy: str) -> None:
    """Read all files. IndexFolderError, ending with `remedy`, if one is missing or has another sha256."""
    for name, expected in files.items():
        path = folder / name
        actual = file_sha256(path) if path.is_file() else "none"
        if actual != expected:
            raise IndexFolderError(
                f"{folder} is damaged: {name} has sha256 {actual[:12]}…, expected {expected[:12]}…. {remedy}"
            )


def hashes_of(folder: Path) -> dict[str, str]:
    """sha256 of every file of a folder."""
    return {path.name: file_sha256(path) for path in sorted(folder.iterdir())}


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
