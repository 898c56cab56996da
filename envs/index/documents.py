"""The documents of an index, stored in the index folder and read on demand.

`documents.bin` holds id, title and text of every document in corpus order, each field preceded by its length in 8
bytes, so that the sha256 of the file *is* the corpus hash. `documents.offsets.npy` holds the start of every document;
two sorted arrays look up an id. Opening reads none of it.
"""

import hashlib
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...data.load import document_record
from ...data.types import Document
from ...errors import DataError
from .arrays import NpyWriter, integers, mapped, offsets_of

RECORDS = "documents.bin"
OFFSETS = "documents.offsets.npy"
_HASHES = "documents.hashes.npy"
_ORDER = "documents.order.npy"
_CACHE_SIZE = 2**16
_COPY_BYTES = 2**24


def write_part(folder: Path, documents: Iterable[Document]) -> list[Document]:
    """Write a block of documents, one at a time, for `merge`. Returns them for the retriever to index."""
    block: list[Document] = []
    sizes: list[int] = []
    hashes: list[int] = []
    with (folder / RECORDS).open("wb") as file:
        for document in documents:
            record = document_record(document)
            file.write(record)
            sizes.append(len(record))
            hashes.append(_hash(document.id))
            block.append(document)
    np.save(folder / OFFSETS, offsets_of(sizes))
    np.save(folder / _HASHES, np.array(hashes, dtype=np.uint64))
    return block


def merge(parts: Sequence[Path], folder: Path) -> int:
    """Merge the parts in order, at most 2³¹ − 1 documents. Returns their number. DataError for a duplicate id."""
    offsets = [mapped(part / OFFSETS) for part in parts]
    total = sum(len(ends) - 1 for ends in offsets)
    with (folder / RECORDS).open("wb") as records, NpyWriter(folder / OFFSETS, np.int64, (total + 1,)) as table:
        base = 0
        table.write(np.zeros(1, dtype=np.int64))
        for part, ends in zip(parts, offsets, strict=True):
            with (part / RECORDS).open("rb") as file:
                shutil.copyfileobj(file, records, _COPY_BYTES)
            table.write(ends[1:] + base)
            base += int(ends[-1])
    hashes = np.concatenate([mapped(part / _HASHES) for part in parts])
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    np.save(folder / _HASHES, hashes)
    np.save(folder / _ORDER, order.astype(np.int32))
    if total:
        _refuse_duplicate_ids(Documents(folder), order, np.flatnonzero(hashes[1:] == hashes[:-1]))
    return total


class Documents:
    """The documents of an opened index. `in` tests for an id."""

    def __init__(self, folder: Path) -> None:
        self._records = np.memmap(folder / RECORDS, dtype=np.uint8, mode="r").data
        self._offsets, self._hashes, self._order = (integers(folder / name) for name in (OFFSETS, _HASHES, _ORDER))
        self.id = lru_cache(_CACHE_SIZE)(self._id)
        """The id of the document at a position."""
        self.position = lru_cache(_CACHE_SIZE)(self._position)
        """The position of the document with an id. KeyError if there is none."""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __contains__(self, identifier: object) -> bool:
        try:
            return isinstance(identifier, str) and self.position(identifier) >= 0
        except KeyError:
            return False

    def at(self, position: int) -> Document:
        """The document at a position."""
        return Document(*self._fields(position, 3))

    def _id(self, position: int) -> str:
        return self._fields(position, 1)[0]

    def _position(self, identifier: str) -> int:
        target = _hash(identifier)
        i = bisect_left(self._hashes, target)
        while i < len(self) and self._hashes[i] == target:
            if self._id(self._order[i]) == identifier:
                return self._order[i]
            i += 1
        raise KeyError(identifier)

    def _fields(self, position: int, count: int) -> list[str]:
        start = self._offsets[position]
        fields: list[str] = []
        for _ in range(count):
            size = int.from_bytes(self._records[start : start + 8], "big")
            start += 8 + size
            fields.append(str(self._records[start - size : start], "utf-8", "surrogatepass"))
        return fields


def _hash(identifier: str) -> int:
    digest = hashlib.blake2b(identifier.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _refuse_duplicate_ids(documents: Documents, order: npt.NDArray[np.intp], duplicates: npt.NDArray[np.intp]) -> None:
    for i in duplicates.tolist():
        first, second = sorted((int(order[i]), int(order[i + 1])))
        if documents.id(first) == documents.id(second):
            raise DataError(
                f"document id {documents.id(first)!r} occurs twice in the corpus (documents {first + 1} and "
                f"{second + 1}); ids must be unique. Rename or remove one of the two."
            )
