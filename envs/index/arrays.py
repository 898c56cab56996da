"""Arrays and sorted strings on disk, memory-mapped and never unpickled."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


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
