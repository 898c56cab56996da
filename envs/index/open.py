"""Opens and verifies an index: a folder with `manifest.json` and the files that it names, created atomically.

The manifest records what was indexed and how (recipe, corpus hash, model fingerprint) and the sha256 of every file.
Opening checks the manifest's own hash and the size of every file but reads no file; `verify_index` reads them all.
Files are .npy arrays, texts and FAISS indexes, all memory-mapped; nothing is ever unpickled.
"""

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...errors import IndexFolderError
from ...storage import descriptor_sha256
from ..index_names import index_folder
from .documents import Documents
from .manifest import INDEX, FileEntry, Manifest

Opened = TypeVar("Opened")


@dataclass(slots=True)
class _GuardedFile:
    path: Path
    descriptor: int
    entry: FileEntry
    checked: int
    """Modification time, in ns, of the content that was opened or read last."""
    content_damage: str = ""
    """The damage to that content; "" for none."""

    @property
    def stat(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    @property
    def damage(self) -> str:
        size = self.stat.st_size
        if size != self.entry.size:
            return f"{self.path} has {size} bytes and had {self.entry.size} when it was opened"
        return self.content_damage

    def read(self) -> None:
        """Compare the sha256. The file is read, not mapped, so that a damaged disk is an error and no signal."""
        checked, self.content_damage = self.stat.st_mtime_ns, ""
        try:
            digest = descriptor_sha256(self.descriptor)
        except OSError as error:
            self.content_damage = f"{self.path} cannot be read ({error.strerror})"
        else:
            if digest != self.entry.sha256:
                expected = self.entry.sha256[:12]
                self.content_damage = f"{self.path} has sha256 {digest[:12]}…; the manifest says {expected}…"
        self.checked = checked


class GuardedFiles:
    """The files of an index as they were when it was opened, even if others have replaced them since.

    The files are memory-mapped. If one is truncated, the rest of its last page reads as zeros, which would pass for
    valid scores and texts, and reading beyond that page kills the process (SIGBUS). One that is overwritten in place
    reads as whatever was written. So length and modification time of every file are checked before and after a read
    whose result counts: one system call per file. A file that was written to is then read, to compare its sha256.
    """

    def __init__(self, folder: Path, files: Mapping[str, FileEntry]) -> None:
        """Hold the files of a manifest open. Raises OSError."""
        self._files: list[_GuardedFile] = []
        self._reading = threading.Lock()
        for name, entry in files.items():
            descriptor = os.open(folder / name, os.O_RDONLY)
            weakref.finalize(self, os.close, descriptor)
            self._files.append(_GuardedFile(folder / name, descriptor, entry, os.fstat(descriptor).st_mtime_ns))

    @property
    def damage(self) -> str:
        """Describes the first file whose length has changed or whose content is known to be damaged; "" for none."""
        return next(filter(None, (file.damage for file in self._files)), "")

    def check(self, everything: bool = False) -> str:
        """`damage`, after reading the files that were written to since they were opened or read, or `everything`.

        A file that was only touched, or that was restored, is no damage.
        """
        for file in self._files:
            if everything or file.stat.st_mtime_ns != file.checked:
                with self._reading:
                    if everything or file.stat.st_mtime_ns != file.checked:
                        file.read()
        return self.damage


@dataclass(frozen=True, slots=True)
class Index:
    """An opened index folder: its manifest, its documents, and all its files held open."""

    path: Path
    manifest: Manifest
    documents: Documents
    guarded_files: GuardedFiles


def open_index(path: str | Path) -> Index:
    """Open an index folder without reading its files.

    Raises IndexFolderError for a missing folder, a manifest that is missing, unreadable, changed or of an unknown
    format, and for a file that is missing or has another size than the manifest says.
    """
    folder, manifest = _read_folder(path)
    files = load_or_raise(folder, partial(GuardedFiles, folder, manifest.files))
    return Index(folder, manifest, load_or_raise(folder, partial(Documents, folder)), files)


def verify_index(path: str | Path) -> Manifest:
    """Read every file of an index folder and compare its sha256. Raises IndexFolderError as `open_index`."""
    folder, manifest = _read_folder(path)
    INDEX.check_content(folder, manifest.files)
    return manifest


def _read_folder(path: str | Path) -> tuple[Path, Manifest]:
    folder = index_folder(path)
    manifest = INDEX.read(folder, "Point env.index to a folder that was written by querylect index build.")
    INDEX.check_sizes(folder, manifest.files)
    return folder, manifest


def load_or_raise(folder: Path, load: Callable[[], Opened]) -> Opened:
    try:
        return load()
    except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise IndexFolderError(
            f"index {folder} cannot be read ({error}). Build it again: querylect index build --overwrite."
        ) from error
