"""Arrays and strings on disk: written front to back by plain writes, read memory-mapped, never unpickled."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

_KNOWN = 2**17


class NpyWriter:
    """A .npy file of a shape known beforehand, whose rows come in pieces. Use it in a `with` block.

    A full disk is an OSError here; writing through a memory map would end the process instead.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        self._dtype, self._shape = np.dtype(dtype), shape
        self._rows = 0
        self._file = path.open("wb")
        header = np.lib.format.header_data_from_array_1_0(np.empty(0, self._dtype)) | {"shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Append rows."""
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._rows += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        assert error is not None or self._rows == self._shape[0], f"{self._rows} rows written of {self._shape[0]}"


def mapped(path: Path) -> npt.NDArray[Any]:
    """The array of a .npy file, memory-mapped and read-only. ValueError where the file holds none, or a pickle."""
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    return array


def offsets_of(sizes: Iterable[int]) -> npt.NDArray[np.int64]:
    """Where pieces of these sizes begin when they lie end to end, and where the last one ends."""
    return np.fromiter(accumulate(sizes, initial=0), dtype=np.int64)


def write_words(folder: Path, words: Sequence[bytes]) -> None:
    """Write sorted distinct words, for `Words` to look up."""
    (folder / "words.bin").write_bytes(b"".join(words))
    np.save(folder / "words.offsets.npy", offsets_of(map(len, words)))


def read_words(folder: Path) -> list[bytes]:
    """What `write_words` wrote."""
    content, offsets = (folder / "words.bin").read_bytes(), np.load(folder / "words.offsets.npy", allow_pickle=False)
    return [content[start:end] for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


class Words:
    """The place of a word among the sorted words of a file that stays on disk."""

    def __init__(self, folder: Path) -> None:
        self._text = np.memmap(folder / "words.bin", dtype=np.uint8, mode="r").view(np.ndarray)
        self._offsets = mapped(folder / "words.offsets.npy")
        if len(self._text) != self._offsets[-1]:
            raise ValueError(f"words.bin has {len(self._text)} bytes; words.offsets.npy says {self._offsets[-1]}")
        self.place = lru_cache(_KNOWN)(self._place)
        """The place of a word (str), -1 where it is unknown."""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def word(self, place: int) -> str:
        """The word of that place."""
        return self._at(place).decode("utf-8", "surrogatepass")

    def _at(self, place: int) -> bytes:
        return self._text[self._offsets[place] : self._offsets[place + 1]].tobytes()

    def _place(self, word: str) -> int:
        wanted = word.encode("utf-8", "surrogatepass")
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._at(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self) and self._at(low) == wanted else -1
