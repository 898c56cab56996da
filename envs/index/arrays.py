"""Arrays and strings on disk: written sequentially with plain writes, read memory-mapped, never unpickled."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

_CACHE_SIZE = 2**17


class NpyWriter:
    """Writes a .npy file of known shape piece by piece. Use it in a `with` block.

    A full disk raises OSError here; writing through a memory map would kill the process (SIGBUS).
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        self._dtype, self._shape = np.dtype(dtype), shape
        self._rows = 0
        self._file = path.open("wb")
        header = np.lib.format.header_data_from_array_1_0(np.empty(0, self._dtype)) | {"shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def write(self, rows: npt.NDArray[np.generic]) -> None:
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
    """The array of a .npy file, memory-mapped and read-only. ValueError if the file holds no array, or a pickle."""
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    return array


def integers(path: Path) -> memoryview:
    """`mapped` for integers that are read one by one, which is several times as fast in a memoryview."""
    return mapped(path).data


def offsets_of(sizes: Iterable[int]) -> npt.NDArray[np.int64]:
    """Start offsets of consecutive pieces of these sizes, and the end of the last one."""
    return np.fromiter(accumulate(sizes, initial=0), dtype=np.int64)


def write_words(folder: Path, words: Sequence[bytes]) -> None:
    """Write sorted distinct words, for `SortedWords` to look up."""
    (folder / "words.bin").write_bytes(b"".join(words))
    np.save(folder / "words.offsets.npy", offsets_of(map(len, words)))


def read_words(folder: Path) -> list[bytes]:
    content, offsets = (folder / "words.bin").read_bytes(), np.load(folder / "words.offsets.npy", allow_pickle=False)
    return [content[start:end] for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


class SortedWords:
    """Looks words up in the sorted words of a file that stays on disk."""

    def __init__(self, folder: Path) -> None:
        self._text = np.memmap(folder / "words.bin", dtype=np.uint8, mode="r").data
        self._offsets = integers(folder / "words.offsets.npy")
        self.position = lru_cache(_CACHE_SIZE)(self._position)
        """The position of a word (str), -1 if it is unknown."""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def word(self, position: int) -> str:
        return self._at(position).decode("utf-8", "surrogatepass")

    def _at(self, position: int) -> bytes:
        return self._text[self._offsets[position] : self._offsets[position + 1]].tobytes()

    def _position(self, word: str) -> int:
        target = word.encode("utf-8", "surrogatepass")
        position = bisect_left(range(len(self)), target, key=self._at)
        return position if position < len(self) and self._at(position) == target else -1
