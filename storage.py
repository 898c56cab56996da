"""Durable file writes (fsync), file locks, journals of keyed records, and sha256 of files, folders and plain data."""

import errno
import fcntl
import glob
import hashlib
import json
import logging
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import Field, asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from .digests import FolderDigests, refuse_damaged
from .errors import StorageError

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

    What earlier writers of this file on this machine left when they were killed is removed. Raises StorageError, ending
    with `remedy` (what to do), if the disk does not take it; the old file stays.
    """
    prefix = f".{path.name}.{socket.gethostname()}."
    partial = path.with_name(f"{prefix}{os.getpid()}.partial")
    with writing(path, remedy):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for left in path.parent.glob(glob.escape(prefix) + "*.partial"):
                process = left.name.removeprefix(prefix).removesuffix(".partial")
                if process.isdecimal() and not _is_running(int(process)):
                    left.unlink(missing_ok=True)
            with partial.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:  # also text that UTF-8 does not encode, and Ctrl-C
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


@contextmanager
def new_folder(target: Path, label: str) -> Iterator[Path]:
    """A temporary folder that becomes `target` when the block ends without an error.

    Raises StorageError, which names `label`, if the block cannot write its files.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with storage(
            lambda error: (
                f"{label} could not be written to {target} ({error}); nothing was left there. "
                "Free some space or choose a folder that can be written."
            )
        ):
            temporary.mkdir(parents=True)
            yield temporary
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def locked(descriptor: int, path: Path, taken: str) -> Iterator[None]:
    """Lock `path`, opened as `descriptor`, until the block ends or the descriptor is closed.

    On a file system without flock, `path` and ".held" is created instead, as by `only_writer`; where that cannot be
    created either, the block runs without a lock, and this is logged. Raises StorageError, beginning with `taken`, if
    another process holds the lock.
    """
    unsupported, claim, process = _flock(descriptor, taken), None, os.getpid()
    if unsupported:
        try:
            claim = _claim(path, taken)
        except OSError as error:
            log.warning("%s cannot be locked (%s; %s): do not let a second process write there",
                        path, unsupported, error)  # fmt: skip
    try:
        yield
    finally:
        if claim and os.getpid() == process:  # not in a forked child
            with suppress(OSError):
                claim.unlink(missing_ok=True)


def _flock(descriptor: int, message: str) -> OSError | None:
    """Lock a descriptor for as long as it is open; None, or the error of a file system that has no locks.

    flock also holds between machines: Linux turns it into a byte-range lock on NFS, and Lustre (mounted with `flock`)
    and GPFS know it. Raises StorageError with `message` if another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StorageError(message) from error
    except OSError as error:
        return error
    return None


@dataclass(frozen=True, slots=True)
class _Owner:
    """What a lock file says of the process that holds it."""

    host: str
    pid: int
    started: str
    """With the offset from UTC."""
    command: str


_LOCKS: dict[Path, int] = {}
"""Files and descriptors of the locks that this process holds."""


def _close_inherited_locks() -> None:
    """A forked child shares the descriptors: one that outlived a killed parent would keep its locks."""
    while _LOCKS:
        os.close(_LOCKS.popitem()[1])


os.register_at_fork(after_in_child=_close_inherited_locks)


@contextmanager
def only_writer(folder: Path, name: str, unwritable: str, taken: str) -> Iterator[None]:
    """Lock a folder for this process through its file `name`; the lock ends with the process, however that ends.

    While it is held the file says by whom. It stays afterwards, empty, since on NFS a removed file may still be locked
    by others; only folders that this call made and in which nothing else was written are removed again. On a file
    system without flock, a second file, `name` and ".held", is created for as long as the lock is held. One that a
    killed process left is taken over on that process's host, and refused elsewhere.

    Raises StorageError: ending with `unwritable` (what to do) if the folder cannot be made, and with the text `taken`
    and what the file says if another process holds the lock.
    """
    path = folder / name
    claim: Path | None = None
    try:
        created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error}). {unwritable}") from error
    try:
        message = " ".join(filter(None, (taken, _holder(_lock_text(descriptor)))))
        unsupported = _flock(descriptor, message)
        if _is_another_file(path, descriptor):  # its last holder has just removed it
            raise StorageError(message)
        if unsupported:
            with storage(lambda error: f"{folder} cannot be locked ({unsupported}; {error}). {unwritable}"):
                claim = _claim(path, taken)
    except BaseException:
        os.close(descriptor)
        raise
    _LOCKS[path] = descriptor
    try:
        with suppress(OSError):  # a full disk: the lock holds without it
            _replace(descriptor, _this_process())
        yield
    finally:
        if _LOCKS.pop(path, None) is not None:  # a forked child has closed it
            with suppress(OSError):
                _replace(descriptor, "")
                if claim:
                    claim.unlink(missing_ok=True)
                if created and os.listdir(folder) == [name] and not _is_another_file(path, descriptor):
                    path.unlink()
                    for parent in created:
                        parent.rmdir()
            os.close(descriptor)


def _claim_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.held")


def _claim(path: Path, taken: str) -> Path:
    """Create the file that locks `path` where flock does not; StorageError, starting with `taken`, where it exists.

    A claim whose process has ended is replaced by the process that creates a second file for that moment: of two that
    read the same old claim, the later would otherwise remove the new claim of the earlier. Raises OSError.
    """
    claim = blocking = _claim_of(path)
    if _create(claim):
        return claim
    holder = _claimed_by(claim)
    if holder is None:
        takeover = claim.with_name(f"{claim.name}.takeover")
        if not _create(takeover):
            holder, blocking = _claimed_by(takeover), takeover
        else:
            try:
                if _has_ended(claim):  # not where its holder has just left: the next claim may be there already
                    claim.unlink(missing_ok=True)
                if _create(claim):
                    return claim
                holder = _claimed_by(claim)
            finally:
                takeover.unlink(missing_ok=True)
    raise StorageError(
        " ".join(filter(None, (taken, holder)))
        + f" (This file system has no locks. If that process has ended, remove {blocking}.)"
    )


def _create(claim: Path) -> bool:
    """Create a file that says who this process is; False where it exists. Raises OSError."""
    try:
        descriptor = os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    with suppress(OSError):  # a full disk: it holds without the text
        _replace(descriptor, _this_process())
    os.close(descriptor)
    return True


def _has_ended(claim: Path) -> bool:
    """Whether a claim is there and names a process of this host that has ended."""
    text = _read_claim(claim)
    return text is not None and _names_ended_process(text)


def _claimed_by(claim: Path) -> str | None:
    """Who holds a claim, as a sentence, "" where that cannot be read; None where nobody does, or its process ended."""
    text = _read_claim(claim)
    return None if text is None or _names_ended_process(text) else _holder(text)


def _read_claim(claim: Path) -> bytes | None:
    """The text of a claim; None where there is none."""
    try:
        descriptor = os.open(claim, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return _lock_text(descriptor)
    finally:
        os.close(descriptor)


def _names_ended_process(text: bytes) -> bool:
    owner = _owner(text)
    return owner is not None and owner.host == socket.gethostname() and not _is_running(owner.pid)


COMMAND_LOCK = ".lock"
"""The file of `only_command` in a folder."""


def only_command(folder: Path) -> AbstractContextManager[None]:
    """Lock the folder of a run or an evaluation, so that no two commands write results or steps there.

    Raises StorageError as `only_writer`.
    """
    return only_writer(
        folder,
        COMMAND_LOCK,
        unwritable="Give another output.",
        taken=f"another command is at work in {folder}. Wait for it, or choose another name or output.",
    )


def command_at_work(folder: Path) -> str | None:
    """Who holds `only_command` of a folder, as a sentence; None where nobody does or it cannot be known."""
    try:
        descriptor = os.open(folder / COMMAND_LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _holder(_lock_text(descriptor)) or "Its lock is held."
    except OSError:
        return _claimed_by(_claim_of(folder / COMMAND_LOCK))
    finally:
        os.close(descriptor)


def another_took_over(folder: Path) -> bool:
    """Whether this process holds `only_command` of a folder that was removed, and another command works in a new one.

    False where the lock file alone is gone, and in a process that holds no lock.
    """
    path = folder / COMMAND_LOCK
    return path in _LOCKS and path.exists() and _is_another_file(path, _LOCKS[path])


def lock_was_removed(folder: Path) -> bool:
    """Whether this process holds `only_command` of a folder whose lock file was removed."""
    path = folder / COMMAND_LOCK
    return path in _LOCKS and not path.exists()


def _is_another_file(path: Path, descriptor: int) -> bool:
    try:
        return not os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return True


def _this_process() -> str:
    started = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    owner = _Owner(socket.gethostname(), os.getpid(), started, shlex.join(sys.orig_argv))
    return json.dumps(asdict(owner), ensure_ascii=False) + "\n"


def _lock_text(descriptor: int) -> bytes:
    """What is written in a lock file; nothing where it cannot be read."""
    try:
        return os.pread(descriptor, 65_536, 0)
    except OSError:
        return b""


def _owner(text: bytes) -> _Owner | None:
    """The holder that the text of a lock file names; None where it names none."""
    try:
        return TypeAdapter(_Owner).validate_json(text, strict=True)
    except ValidationError:
        return None


def _holder(text: bytes) -> str:
    """The holder that the text of a lock file names, as a sentence; "" where it names none."""
    owner = _owner(text)
    if owner is None:
        return ""
    sentence = f"It is process {owner.pid} on {owner.host}, since {owner.started}: {owner.command[:200]}"
    return "".join(character if character.isprintable() else " " for character in sentence)


def _replace(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def refuse_unwritable(folder: Path, remedy: str = "Give another with --output.") -> None:
    """Raise StorageError, ending with `remedy`, where nothing could be written into `folder`, before time is spent."""
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        message = f"{folder} cannot be written: {existing} is no writable folder. {remedy}"
        raise StorageError(message)


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


def descriptor_sha256(descriptor: int) -> str:
    """sha256 (64 hex digits) of an open file's bytes, whatever its position is. Raises OSError."""
    digest, offset = hashlib.sha256(), 0
    while block := os.pread(descriptor, 2**20, offset):
        digest.update(block)
        offset += len(block)
    return digest.hexdigest()


@contextmanager
def storage(message: Callable[[OSError], str]) -> Iterator[None]:
    """Turn an OSError of this block into a StorageError with the text `message(error)`."""
    try:
        yield
    except OSError as error:
        raise StorageError(message(error)) from error


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
        end = end_of_lines = file.seek(0, os.SEEK_END)
        while end_of_lines:
            start = max(0, end_of_lines - 65536)
            file.seek(start)
            newline = file.read(end_of_lines - start).rfind(b"\n")
            if newline >= 0:
                end_of_lines = start + newline + 1
                break
            end_of_lines = start
        if end_of_lines < end:
            file.truncate(end_of_lines)
            os.fsync(file.fileno())
    return end_of_lines < end


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


_KEPT = "Free some space and run the same command again: what is there is kept."


class KeyedJournal(Generic[Record]):
    """An append-only file of records, one JSON object a line, that are looked up by their keys when work is resumed.

    A line and its digest are on the disk before `append` returns: a key identifies the request, the digest the bytes of
    the answer. An incomplete last line of a killed process is removed. Lines of another form and records that are not
    `complete` count as missing, so their work is done again.
    """

    def __init__(
        self, path: Path, kind: type[Record], remedy: str, complete: Callable[[Record], bool] = lambda record: True
    ) -> None:
        """Read the file, if there is one; `remedy` ends the StorageError of one that cannot be read or is damaged."""
        self.path, self._complete = path, complete
        self._digests = FolderDigests(path.parent, partial(write_text, remedy=_KEPT))
        adapter = TypeAdapter(kind)

        def parse(line: bytes) -> Record | None:
            try:
                return adapter.validate_json(line, extra="forbid")
            except ValidationError:
                return None

        refuse_damaged(path.parent, {path.name}, remedy)
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
        lines = "".join(map(json_line, records))
        with writing(self.path, _KEPT):
            append(self.path, lines)
            self._digests.appended(self.path, lines.encode())
        self._by_key |= {record.key: record for record in records if self._complete(record)}

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the file by these records, in this order, and the complete records of other keys after them."""
        records = list(records)
        new = {record.key: record for record in records if self._complete(record)}
        retained = {key: record for key, record in self._by_key.items() if key not in new}
        with self._digests.replacing(self.path):
            lines = "".join(map(json_line, [*records, *retained.values()]))
            write_text(self.path, lines, "Free some space or give another --output.")
        self._by_key = new | retained


def json_line(record: Keyed) -> str:
    """A record as one line of JSON, including the newline."""
    return json.dumps(asdict(record), ensure_ascii=False, default=str) + "\n"
