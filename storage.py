"""Files that survive a kill: atomic writes and swaps of folders, locks, whole lines; sha256 of data."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import QuerylectError, StorageError

log = logging.getLogger(__name__)

_DISK_ERRORS = ("I/O error", "No space left", "inline_container", "PytorchStreamWriter", "iostream", "(os error ")
"""Texts by which safetensors, torch.save and tokenizers report a file that cannot be written, each in another type."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk in this block into a StorageError that names the file or folder that is written."""
    try:
        yield
    except Exception as error:
        of_disk = isinstance(error, OSError) or any(text in str(error) for text in _DISK_ERRORS)
        if isinstance(error, QuerylectError) or not of_disk:
            raise
        raise StorageError(
            f"{path} could not be written ({error}). Free some space, or name a folder that can be written, and repeat "
            "the command (train and optimize: with --resume)."
        ) from error


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines with LF ends on every system. Raises OSError."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: readers see the old file or the complete new one. Raises StorageError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that replaces it once the block has ended without an error.

    Raises StorageError where the block cannot write its files. After a kill between the two renames, `restore_folder`
    puts the old folder back.
    """
    partial, old = target.with_name(f".{target.name}.partial"), _set_aside(target)
    with writing(target):
        restore_folder(target)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            shutil.rmtree(old, ignore_errors=True)
            if target.exists():
                target.rename(old)
            partial.rename(target)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            restore_folder(target)
            shutil.rmtree(partial, ignore_errors=True)


def restore_folder(target: Path) -> None:
    """Put back the folder that an `atomic_folder`, killed between its two renames, has set aside."""
    old = _set_aside(target)
    if old.exists() and not target.exists():
        old.rename(target)


def _set_aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.before")


LOCK = ".lock"


@contextmanager
def only_command(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Lock a folder, so that no two commands write there; the lock ends with the process, however that ends.

    Raises StorageError if the folder cannot be written or another process holds the lock.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = FileLock(folder / name, timeout=0, thread_local=False)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise StorageError(f"another command is at work in {folder}. Wait for it, or name another.") from error
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / name).unlink()  # while it is locked: filelock opens a new file where the opened one was removed
        lock.release()
        with suppress(OSError):  # one that is not empty stays, and those above it
            for path in created:
                path.rmdir()


def is_command_at_work(folder: Path) -> bool:
    """Whether another process holds `only_command` of a folder; False where that cannot be known."""
    try:
        with FileLock(folder / LOCK, timeout=0) if (folder / LOCK).exists() else nullcontext():
            return False
    except Timeout:
        return True
    except OSError:
        return False


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises JSONDecodeError, also for brackets that Python cannot read for their depth."""
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("its brackets are nested too deeply", "", 0) from None


def json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file is missing or invalid."""
    try:
        values = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def logged_objects(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a log, one a line; without lines that were cut, and none where there is no log."""
    records = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        with suppress(ValueError):
            records.append(parse_json(line))
    return [record for record in records if isinstance(record, dict)]


def data_sha256(value: object) -> str:
    """sha256 (64 hex digits) of plain data as JSON, independent of key order."""
    return text_sha256(json.dumps(value, sort_keys=True, default=str))


def text_sha256(text: str) -> str:
    """sha256 (64 hex digits) of a text as UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 (64 hex digits) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path) -> str:
    """sha256 over names and contents of a model's files, without hidden files, code and readme files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        excluded = path.suffix in (".md", ".py", ".pyc", ".lock") or any(part[0] == "." for part in name.parts)
        if path.is_file() and not excluded:
            digest.update(f"{name.as_posix()}\n{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def append(path: Path, text: str) -> None:
    """Append whole lines. Raises OSError."""
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)


def cut_off_half_a_line(path: Path) -> None:
    """Remove an unterminated last line, as a killed process leaves it. Raises OSError."""
    text = path.read_bytes() if path.exists() else b""
    if (end := text.rfind(b"\n") + 1) < len(text):
        os.truncate(path, end)
