"""Files that are written to the disk before anything relies on them, and the hash by which they are recognised."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StorageError


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, whatever the system ends lines with; they are on the disk when this returns. Raises OSError."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def file_sha256(path: Path) -> str:
    """sha256 (64 hex digits) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def storage(said: Callable[[OSError], str]) -> Iterator[None]:
    """Turn what the disk does not take in this block into a StorageError that says `said(error)`."""
    try:
        yield
    except OSError as error:
        raise StorageError(said(error)) from error
