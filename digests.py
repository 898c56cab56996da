"""Digests of files, in the `digests.json` of their folder, so that bytes that changed on the disk are never used.

An entry covers the first `bytes` of a file: the whole file, or what a log had when the entry was written, since logs
(`.jsonl`) grow. Whenever the process dies, entries agree with the files: a line is on the disk before its entry says
so, and a file has no entry while it is replaced. Files without an entry, as those of earlier versions, are not checked.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from .errors import StorageError, in_one_line

DIGESTS = "digests.json"

_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class Digest:
    """The recorded length and hash of a file."""

    bytes: int
    sha256: str
    """Of the first `bytes`, as 64 hex digits."""


_ENTRIES = TypeAdapter(dict[str, Digest])


def describe_folder(folder: Path, *left_out: str) -> str:
    """The content of `digests.json` for all files below a folder that is complete, but these. Raises OSError."""
    paths = {name: path for name, path in _files(folder).items() if name not in (DIGESTS, *left_out)}
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        return _as_json(dict(zip(paths, pool.map(_digest, paths.values()), strict=True)))


def refuse_damaged_folder(folder: Path, remedy: str) -> None:
    """Read every file of a folder that has an entry. Raises StorageError, ending with `remedy`, for one that changed
    or is missing."""
    entries = _read(folder)
    present = _files(folder) if entries else {}
    _refuse_first(folder, {name: (present.get(name), digest) for name, digest in entries.items()}, remedy)


def refuse_damaged(folder: Path, names: Collection[str], remedy: str) -> None:
    """The same for some files of a folder; those that are missing are not checked."""
    entries = {name: (folder / name, digest) for name, digest in _read(folder).items() if name in names}
    _refuse_first(folder, {name: entry for name, entry in entries.items() if entry[0].exists()}, remedy)


class FolderDigests:
    """The entries of a folder to which this process alone writes. `write` writes a text file atomically."""

    def __init__(self, folder: Path, write: Callable[[Path, str], None]) -> None:
        self.folder, self._write = folder, write
        self._logs: dict[str, tuple[int, hashlib._Hash]] = {}

    @contextmanager
    def replacing(self, path: Path) -> Iterator[None]:
        """The block replaces or removes a file; its entry is removed before and written anew afterwards."""
        name = path.relative_to(self.folder).as_posix()
        self._logs.pop(name, None)
        entries = _read(self.folder)
        if entries.pop(name, None) is not None:
            self._save(entries)
        yield
        if path.exists():
            self._save({**entries, name: _digest(path)})

    def appended(self, path: Path, data: bytes) -> None:
        """Extend the entry of a log by what was written to its end; a log without an entry is read once."""
        name = path.relative_to(self.folder).as_posix()
        length, state = self._logs.get(name, (0, None))
        size = path.stat().st_size
        if state is not None and length + len(data) == size:
            state = state.copy()
            state.update(data)
        else:
            state = _hash(path, size)
        self._save({**_read(self.folder), name: Digest(size, state.hexdigest())})
        self._logs[name] = size, state

    def _save(self, entries: Mapping[str, Digest]) -> None:
        self._write(self.folder / DIGESTS, _as_json(entries))


def _read(folder: Path) -> dict[str, Digest]:
    path = folder / DIGESTS
    try:
        return _ENTRIES.validate_json(path.read_bytes(), extra="forbid")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValidationError) as error:
        raise StorageError(
            f"{path} is damaged ({in_one_line(error)}): it holds the digests of the files beside it. Restore it from a "
            "copy, or remove it to go on without checking them."
        ) from error


def _refuse_first(folder: Path, entries: Mapping[str, tuple[Path | None, Digest]], remedy: str) -> None:
    with ThreadPoolExecutor() as pool:
        problems = pool.map(lambda entry: _problem(*entry), entries.values())
        for name, problem in zip(entries, problems, strict=True):
            if problem:
                raise StorageError(f"{folder / name} is damaged: {problem} ({DIGESTS} beside it). {remedy}")


def _problem(path: Path | None, digest: Digest) -> str:
    if path is None:
        return "it is missing"
    try:
        size = path.stat().st_size
        if size < digest.bytes or (size > digest.bytes and path.suffix != ".jsonl"):
            return f"it has {size} bytes, and {digest.bytes} were written"
        changed = _hash(path, digest.bytes).hexdigest() != digest.sha256
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return "its bytes are not those that were written" if changed else ""


def _files(folder: Path) -> dict[str, Path]:
    """The files below a folder by relative name."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _digest(path: Path) -> Digest:
    size = path.stat().st_size
    return Digest(size, _hash(path, size).hexdigest())


def _hash(path: Path, size: int) -> "hashlib._Hash":
    """sha256 of the first `size` bytes of a file. Raises OSError."""
    state = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while size > 0 and (block := file.read(min(size, _BLOCK))):
            state.update(block)
            size -= len(block)
    return state


def _as_json(entries: Mapping[str, Digest]) -> str:
    return json.dumps({name: asdict(entries[name]) for name in sorted(entries)}, indent=1) + "\n"
