"""Durable file writes (fsync), locks of folders, journals of keyed records, and sha256 of files, folders and data."""

import errno
import hashlib
import json
import logging
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import Field, asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from .errors import QuerylectError, StorageError

log = logging.getLogger(__name__)

Row = TypeVar("Row")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines with LF ends on every system and fsync the file. Raises OSError."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def reach_the_disk(path: Path) -> None:
    """fsync a file or folder. Without it, a file renamed into place can be empty after a power cut.

    A file system that cannot fsync folders (EINVAL) is tolerated.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def folder_reaches_the_disk(folder: Path) -> None:
    """fsync a folder and everything below it."""
    for path in [*folder.rglob("*"), folder]:
        reach_the_disk(path)


def write_text(path: Path, text: str, remedy: str) -> None:
    """Write a file atomically: readers see the old file or the complete new one.

    Raises StorageError, ending with `remedy` (what to do), if the disk does not take it; the old file stays.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with writing(path, remedy):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:  # also text that UTF-8 does not encode, and Ctrl-C
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that replaces it once the block has ended without an error.

    The old folder is removed last, when the new one is on the disk. Raises OSError.
    """
    partial = target.with_name(f".{target.name}.partial")
    restore_folder(target)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        folder_reaches_the_disk(partial)
        old = _set_aside(target)
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        partial.rename(target)
        reach_the_disk(target.parent)
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


@contextmanager
def new_folder(target: Path, label: str) -> Iterator[Path]:
    """`atomic_folder`; a StorageError that names `label` if the block cannot write its files."""
    with (
        storage(
            lambda error: (
                f"{label} could not be written to {target} ({error}); nothing was left there. "
                "Free some space or choose a folder that can be written."
            )
        ),
        atomic_folder(target) as folder,
    ):
        yield folder


@contextmanager
def only_writer(folder: Path, name: str, remedy: str, taken: str) -> Iterator[None]:
    """Lock a folder for this process through its file `name`; the lock ends with the process, however that ends.

    Afterwards the file is removed, and so is a folder that was made for it and is still empty.

    Raises StorageError: ending with `remedy` (what to do) if the folder cannot be written, and with the text `taken`
    if another process holds the lock.
    """
    path = folder / name
    lock = FileLock(path, timeout=0, thread_local=False)
    existed = folder.exists()
    with storage(lambda error: f"{folder} cannot be written ({error}). {remedy}"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise StorageError(taken) from error
        held = path.stat()
    try:
        yield
    finally:
        with suppress(OSError):
            if os.path.samestat(path.stat(), held):
                path.unlink()  # while it is locked: filelock opens a new file where the opened one was removed
        lock.release()
        if not existed:
            with suppress(OSError):
                folder.rmdir()


COMMAND_LOCK = ".lock"
"""The file of `only_command` in a folder."""


def only_command(folder: Path) -> AbstractContextManager[None]:
    """Lock the folder of a run or an evaluation, so that no two commands write results or steps there.

    Raises StorageError as `only_writer`.
    """
    taken = f"another command is at work in {folder}. Wait for it, or choose another name or output."
    return only_writer(folder, COMMAND_LOCK, "Give another output.", taken)


def is_command_at_work(folder: Path) -> bool:
    """Whether another process holds `only_command` of a folder; False where that cannot be known."""
    path = folder / COMMAND_LOCK
    try:
        with FileLock(path, timeout=0) if path.exists() else nullcontext():
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


@contextmanager
def storage(message: Callable[[Exception], str]) -> Iterator[None]:
    """Turn an error of the disk in this block into a StorageError with the text `message(error)`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, QuerylectError) or not _is_of_the_disk(error):
            raise
        raise StorageError(message(error)) from error


_DISK_ERRORS = (
    "I/O error", "No space left", "inline_container", "PytorchStreamWriter", "iostream",
    f"(os error {errno.ENOSPC})", f"(os error {errno.EDQUOT})",
)  # fmt: skip
"""Texts by which safetensors, torch.save and tokenizers report a file that cannot be written, each in another type."""


def _is_of_the_disk(error: Exception) -> bool:
    return isinstance(error, OSError) or any(text in str(error) for text in _DISK_ERRORS)


def writing(path: Path, remedy: str) -> AbstractContextManager[None]:
    """`storage` for one file: the StorageError names the file, the cause and the `remedy`."""
    return storage(lambda error: f"{path} could not be written ({error}). {remedy}")


_EXCLUDED_SUFFIXES = {".md", ".py", ".pyc", ".lock"}


def folder_sha256(folder: Path) -> str:
    """sha256 over names and contents of a model's files: weights, settings, tokenizer.

    Hidden files, source code and readme files are left out, since they do not change what the model computes.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and path.suffix not in _EXCLUDED_SUFFIXES and not any(part[0] == "." for part in name.parts):
            digest.update(f"{name.as_posix()}\n{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def append(path: Path, text: str) -> None:
    """Append whole lines and fsync the file. Raises OSError."""
    with path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def cut_off_half_a_line(path: Path) -> bool:
    """Remove an unterminated last line, as a killed process leaves it. True if there was one. Raises OSError."""
    if not path.exists():
        return False
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            end_of_lines = text.rfind(b"\n") + 1
        if end_of_lines < size:
            file.truncate(end_of_lines)
            os.fsync(file.fileno())
    return end_of_lines < size


def read_whole(path: Path, row: Callable[[bytes], Row | None], useless: str, unreadable: str) -> list[Row]:
    """Parse each line of a file with `row`; an empty list if there is no file.

    An unterminated last line is removed first. Lines for which `row` returns None are skipped, and logged as a count
    followed by `useless`. Raises StorageError, ending with `unreadable` (what to do), if the file cannot be read.
    """
    try:
        if cut_off_half_a_line(path):
            log.info("%s: its last line was cut and is removed", path)
        rows, lines = [], 0
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    lines += 1
                    if (parsed := row(line.rstrip(b"\r\n"))) is not None:
                        rows.append(parsed)
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error}). {unreadable}") from error
    if len(rows) < lines:
        log.warning("%s: %d lines %s", path, lines - len(rows), useless)
    return rows


class Keyed(Protocol):
    """A dataclass whose `key` hashes everything that the record depends on."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def key(self) -> str:
        """The hash."""
        ...


Record = TypeVar("Record", bound=Keyed)


class KeyedJournal(Generic[Record]):
    """An append-only file of records, one JSON object a line, that are looked up by their keys when work is resumed.

    A line is on the disk before `append` returns. An incomplete last line of a killed process is removed. Lines of
    another form and records that are not `complete` count as missing, so their work is done again.
    """

    def __init__(
        self, path: Path, kind: type[Record], remedy: str, complete: Callable[[Record], bool] = lambda record: True
    ) -> None:
        """Read the file, if there is one; `remedy` ends the StorageError of one that cannot be read."""
        self.path, self._complete = path, complete
        adapter = TypeAdapter(kind)

        def parse(line: bytes) -> Record | None:
            try:
                return adapter.validate_json(line, extra="forbid")
            except ValidationError:
                return None

        rows = read_whole(path, parse, "are no records of this version; their work is done again", remedy)
        self._by_key = {record.key: record for record in rows if complete(record)}

    def get(self, key: str) -> Record | None:
        """The complete record with this key, or None."""
        return self._by_key.get(key)

    @property
    def by_key(self) -> Mapping[str, Record]:
        """The complete records, in the order in which they were first written."""
        return self._by_key

    def append(self, records: Iterable[Record]) -> None:
        """Add records. Raises StorageError if they cannot be written."""
        records = list(records)
        if not records:
            return
        with writing(self.path, "Free some space and run the same command again: what is there is kept."):
            append(self.path, "".join(map(json_line, records)))
        self._by_key |= {record.key: record for record in records if self._complete(record)}

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the file by these records, in this order, and the complete records of other keys after them."""
        records = list(records)
        new = {record.key: record for record in records if self._complete(record)}
        retained = {key: record for key, record in self._by_key.items() if key not in new}
        lines = "".join(map(json_line, [*records, *retained.values()]))
        write_text(self.path, lines, "Free some space or give another --output.")
        self._by_key = new | retained


def json_line(record: Keyed) -> str:
    """A record as one line of JSON, including the newline."""
    return json.dumps(asdict(record), ensure_ascii=False, default=str) + "\n"
