"""Files of JSON lines that only grow, in a folder that one process writes at a time."""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ..errors import StorageError

log = logging.getLogger(__name__)

Row = TypeVar("Row")


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


def read_whole(path: Path, row: Callable[[bytes], Row | None], useless: str, unreadable: str) -> list[Row]:
    """What `row` makes of each line; nothing where there is no file.

    Half a last line is removed. Lines of which `row` makes None are counted in the log, `useless` being what they are
    and what becomes of them. Raises StorageError where the file cannot be read or mended; `unreadable` is what to do.
    """
    try:
        if cut_off_half_a_line(path):
            log.info("%s: its last line was cut and is removed", path)
        rows, lines = [], 0
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    lines += 1
                    if (one := row(line.rstrip(b"\r\n"))) is not None:
                        rows.append(one)
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error}). {unreadable}") from error
    if len(rows) < lines:
        log.warning("%s: %d lines %s", path, lines - len(rows), useless)
    return rows


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
