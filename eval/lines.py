"""Files of JSON lines that only grow, in a folder that one process writes at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StorageError


def append(path: Path, text: str) -> None:
    """Add whole lines; they are on the disk when this returns. Raises OSError."""
    with path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def cut_off_half_a_line(path: Path) -> bool:
    """Remove a last line without its end, as a killed process leaves it; whether there was one. Raises OSError."""
    if not path.exists():
        return False
    with path.open("rb+") as file:
        end = whole = file.seek(0, os.SEEK_END)
        while whole:
            start = max(0, whole - 65536)
            file.seek(start)
            newline = file.read(whole - start).rfind(b"\n")
            if newline >= 0:
                whole = start + newline + 1
                break
            whole = start
        if whole < end:
            file.truncate(whole)
            os.fsync(file.fileno())
    return whole < end


@contextmanager
def only_writer(folder: Path, name: str, unwritable: str, taken: str) -> Iterator[None]:
    """Hold a folder for this process by a lock on its file `name`, which ends with the process.

    Raises StorageError: `unwritable` is what to do where the folder cannot be made, `taken` what to say where another
    process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / name).open("w")
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error}). {unwritable}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(taken) from error
        yield
