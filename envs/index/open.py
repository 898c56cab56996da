"""Opens and verifies an index: a folder with `manifest.json` and the files that it names, created atomically.

The manifest records what was indexed and how (recipe, corpus hash, model fingerprint) and the sha256 of every file.
Opening checks the manifest's own hash and the size of every file but reads no file; `verify_index` reads them all.
Files are .npy arrays, texts and FAISS indexes, all memory-mapped; nothing is ever unpickled.
"""

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...errors import IndexFolderError
from ..preflight import index_folder
from .documents import Documents
from .manifest import FileEntry, Manifest, check_content, check_sizes, read_manifest

Opened = TypeVar("Opened")


class GuardedFiles:
    """The files of an index as they were when it was opened, even if others have replaced them since.

    The files are memory-mapped. If one is truncated, the rest of its last page reads as zeros, which would pass for
    valid scores and texts, and reading beyond that page kills the process (SIGBUS). So the length of every file is
    checked before and after a read whose result counts: one system call per file, and no file is read for it.
    """

    def __init__(self, folder: Path, files: Mapping[str, FileEntry]) -> None:
        """Hold the files of a manifest open. Raises OSError."""
        self._files: list[tuple[Path, int, int]] = []
        for name, entry in files.items():
            descriptor = os.open(folder / name, os.O_RDONLY)
            weakref.finalize(self, os.close, descriptor)
            self._files.append((folder / name, descriptor, entry.size))

    @property
    def damage(self) -> str:
        """Describes the first file whose length has changed; "" if none has."""
        for path, descriptor, size in self._files:
            current = os.fstat(descriptor).st_size
            if current != size:
                return f"{path} has {current} bytes and had {size} when it was opened"
        return ""


@dataclass(frozen=True, slots=True)
class Index:
    """An opened index folder: its manifest, its documents, and all its files held open."""

    path: Path
    manifest: Manifest
    documents: Documents
    held: GuardedFiles


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
    check_content(folder, manifest.files)
    return manifest


def _read_folder(path: str | Path) -> tuple[Path, Manifest]:
    folder = index_folder(path)
    manifest = read_manifest(folder)
    check_sizes(folder, manifest.files)
    return folder, manifest


def load_or_raise(folder: Path, load: Callable[[], Opened]) -> Opened:
    try:
        return load()
    except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise IndexFolderError(
            f"index {folder} cannot be read ({error}). Build it again: querylect index build --overwrite.",
            code="unreadable-index",
        ) from error
