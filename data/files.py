"""Files that are written to the disk before anything relies on them, and the hash by which they are recognised."""

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ..errors import StorageError

log = logging.getLogger(__name__)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, whatever the system ends lines with; they are on the disk when this returns. Raises OSError."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def reach_the_disk(path: Path) -> None:
    """Have the system write a file or folder out: what is renamed before it is written is empty after a power cut."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def folder_reaches_the_disk(folder: Path) -> None:
    """The same for everything below a folder, and the folder."""
    for path in [*folder.rglob("*"), folder]:
        reach_the_disk(path)


def hold(opened: int, path: Path, taken: str) -> None:
    """Lock the descriptor of `path` for as long as it is open; a file system without locks is let pass.

    Raises StorageError, which says `taken`, where another process holds it.
    """
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StorageError(taken) from error
    except OSError as error:
        log.debug("%s cannot be locked (%s)", path, error)


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


def writing(path: Path, remedy: str) -> AbstractContextManager[None]:
    """`storage` for one file: the StorageError names it, says why it was not written, and what to do."""
    return storage(lambda error: f"{path} could not be written ({error}). {remedy}")
