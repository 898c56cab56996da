"""An index: a folder with `meta.json` and the files that it names, renamed into place whole.

`meta.json` records what was indexed and how, and the sha256 of every file. Opening reads no other file; `verify` reads
them all. Files are .npy arrays, texts and FAISS indexes, all memory-mapped; nothing is ever unpickled.

`documents.bin` holds id, title and text of every document in corpus order, each field preceded by its length in 8
bytes, so that the sha256 of the file *is* the corpus hash. `documents.offsets.npy` holds the start of every document;
the sorted ids (`ids.bin`, `ids.offsets.npy`) and their positions (`ids.order.npy`) look up an id.
"""

import json
import shutil
import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from ..configs.section import Strict
from ..data.corpus import Origin, document_record
from ..data.types import Document
from ..errors import DataError, IndexFolderError, in_one_line
from ..storage import data_sha256, file_sha256
from .presets import RetrieverPreset

Description = TypeVar("Description", bound=BaseModel)

META = "meta.json"
RECORDS = "documents.bin"
_OFFSETS = "documents.offsets.npy"
_IDS, _ORDER = "ids", "ids.order.npy"
_PART_IDS = "ids.json"
_CACHED_IDS = 2**16
LIBRARIES = (
    "numpy", "bm25s", "rank-bm25", "PyStemmer", "faiss-cpu", "faiss-gpu", "tantivy", "sentence-transformers",
    "transformers", "torch",
)  # fmt: skip
"""What an index can depend on."""


class IndexSource(Strict):
    """What an index is built from."""

    preset: RetrieverPreset
    settings: dict[str, object]
    """What files and rankings depend on besides the corpus (`RetrieverFactory.settings`)."""
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


def mapped(path: Path) -> npt.NDArray[Any]:
    """The array of a .npy file, memory-mapped and read-only."""
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    return array


def offsets_of(sizes: Iterable[int]) -> npt.NDArray[np.int64]:
    """Start offsets of consecutive pieces of these sizes, and the end of the last one."""
    return np.fromiter(accumulate(sizes, initial=0), dtype=np.int64)


def write_strings(folder: Path, name: str, strings: Sequence[str]) -> None:
    """Write strings, in ascending order, for `SortedStrings` to look up."""
    encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
    (folder / f"{name}.bin").write_bytes(b"".join(encoded))
    np.save(folder / f"{name}.offsets.npy", offsets_of(map(len, encoded)))


class SortedStrings:
    """Strings that stay on the disk."""

    def __init__(self, folder: Path, name: str) -> None:
        file = folder / f"{name}.bin"
        self._text = np.memmap(file, dtype=np.uint8, mode="r").data if file.stat().st_size else memoryview(b"")
        self._offsets = mapped(folder / f"{name}.offsets.npy").data  # reading one item is faster than of an array

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        return self._bytes(number).decode("utf-8", "surrogatepass")

    def _bytes(self, number: int) -> bytes:
        return self._text[self._offsets[number] : self._offsets[number + 1]].tobytes()

    def position(self, string: str) -> int:
        """The position of a string, -1 if it is not there."""
        target = string.encode("utf-8", "surrogatepass")
        position = bisect_left(range(len(self)), target, key=self._bytes)
        return position if position < len(self) and self._bytes(position) == target else -1


def write_documents(folder: Path, documents: Sequence[Document]) -> None:
    """Write a block of documents for `merge_documents`."""
    records = list(map(document_record, documents))
    (folder / RECORDS).write_bytes(b"".join(records))
    np.save(folder / _OFFSETS, offsets_of(map(len, records)))
    (folder / _PART_IDS).write_text(json.dumps([document.id for document in documents]))


def part_size(folder: Path) -> int:
    """The number of documents of a part."""
    return len(mapped(folder / _OFFSETS)) - 1


def merge_documents(parts: Sequence[Path], folder: Path) -> int:
    """Merge the parts in order. Returns the number of documents. DataError for a duplicate id."""
    with (folder / RECORDS).open("wb") as merged:
        for part in parts:
            with (part / RECORDS).open("rb") as file:
                shutil.copyfileobj(file, merged)
    np.save(
        folder / _OFFSETS, offsets_of(np.concatenate([np.diff(mapped(part / _OFFSETS)) for part in parts]).tolist())
    )
    ids: list[str] = [name for part in parts for name in json.loads((part / _PART_IDS).read_bytes())]
    order = sorted(range(len(ids)), key=ids.__getitem__)
    for first, second in pairwise(order):
        if ids[first] == ids[second]:
            raise DataError(
                f"document id {ids[first]!r} occurs twice in the corpus (documents {first + 1} and {second + 1}); ids "
                "must be unique. Rename or remove one of the two."
            )
    write_strings(folder, _IDS, [ids[position] for position in order])
    np.save(folder / _ORDER, np.array(order, dtype=np.int64))
    return len(ids)


class Documents:
    """The documents of an opened index, read on demand. `in` tests for an id."""

    def __init__(self, folder: Path) -> None:
        self._content = np.memmap(folder / RECORDS, dtype=np.uint8, mode="r").data
        self._offsets = mapped(folder / _OFFSETS).data
        self._ids, self._order = SortedStrings(folder, _IDS), mapped(folder / _ORDER).data
        self.id = lru_cache(_CACHED_IDS)(lambda position: self._fields(position, 1)[0])
        """The id of the document at a position."""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __contains__(self, identifier: object) -> bool:
        return isinstance(identifier, str) and self._ids.position(identifier) >= 0

    def at(self, position: int) -> Document:
        """The document at a position."""
        return Document(*self._fields(position, 3))

    def position(self, identifier: str) -> int:
        """The position of the document with an id. KeyError if there is none."""
        number = self._ids.position(identifier)
        if number < 0:
            raise KeyError(identifier)
        return int(self._order[number])

    def _fields(self, position: int, count: int) -> list[str]:
        start = self._offsets[position]
        fields: list[str] = []
        for _ in range(count):
            size = int.from_bytes(self._content[start : start + 8], "big")
            start += 8 + size
            fields.append(str(self._content[start - size : start], "utf-8", "surrogatepass"))
        return fields


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
    except (OSError, ValueError, EOFError, sqlite3.Error) as error:
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
    """Write JSON that people may read."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
