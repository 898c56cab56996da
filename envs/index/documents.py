"""The documents of an index, stored in the index folder and read on demand.

`documents.bin` holds id, title and text of every document in corpus order, each field preceded by its length in 8
bytes, so that the sha256 of the file *is* the corpus hash. `documents.offsets.npy` holds the start of every document;
the sorted ids (`ids.bin`, `ids.offsets.npy`) and their positions (`ids.order.npy`) look up an id.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from ...data.load import document_record
from ...data.types import Document
from ...errors import DataError
from .arrays import SortedStrings, mapped, offsets_of, write_strings

RECORDS = "documents.bin"
OFFSETS = "documents.offsets.npy"
_IDS, _ORDER = "ids", "ids.order.npy"
_PART_IDS = "ids.json"
_CACHE_SIZE = 2**16


def write_part(folder: Path, documents: Iterable[Document]) -> list[Document]:
    """Write a block of documents for `merge`. Returns them for the retriever to index."""
    block = list(documents)
    records = list(map(document_record, block))
    (folder / RECORDS).write_bytes(b"".join(records))
    np.save(folder / OFFSETS, offsets_of(map(len, records)))
    (folder / _PART_IDS).write_text(json.dumps([document.id for document in block]))
    return block


def part_size(folder: Path) -> int:
    """The number of documents of a part."""
    return len(mapped(folder / OFFSETS)) - 1


def merge(parts: Sequence[Path], folder: Path) -> int:
    """Merge the parts in order. Returns the number of documents. DataError for a duplicate id."""
    with (folder / RECORDS).open("wb") as merged:
        for part in parts:
            with (part / RECORDS).open("rb") as file:
                shutil.copyfileobj(file, merged)
    np.save(folder / OFFSETS, offsets_of(np.concatenate([np.diff(mapped(part / OFFSETS)) for part in parts]).tolist()))
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
    """The documents of an opened index. `in` tests for an id."""

    def __init__(self, folder: Path) -> None:
        self._content = np.memmap(folder / RECORDS, dtype=np.uint8, mode="r").data
        self._offsets = mapped(folder / OFFSETS).data
        self._ids, self._order = SortedStrings(folder, _IDS), mapped(folder / _ORDER).data
        self.id = lru_cache(_CACHE_SIZE)(lambda position: self._fields(position, 1)[0])
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
