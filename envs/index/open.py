"""Opens and verifies an index: a folder with `manifest.json` and the files that it names, created atomically.

The manifest records what was indexed and how (recipe, corpus hash, model fingerprint) and the sha256 of every file.
Opening reads no file; `verify_index` reads them all. Files are .npy arrays, texts and FAISS indexes, all memory-mapped;
nothing is ever unpickled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...errors import IndexFolderError
from ..index_names import index_folder
from .documents import Documents
from .manifest import INDEX, Manifest

Opened = TypeVar("Opened")


@dataclass(frozen=True, slots=True)
class Index:
    """An opened index folder: its manifest and its documents."""

    path: Path
    manifest: Manifest
    documents: Documents


def open_index(path: str | Path) -> Index:
    """Open an index folder without reading its files. Raises IndexFolderError for one that is missing or incomplete."""
    folder, manifest = _read_folder(path)
    return Index(folder, manifest, load_or_raise(folder, partial(Documents, folder)))


def verify_index(path: str | Path) -> Manifest:
    """Read every file of an index folder and compare its sha256. Raises IndexFolderError."""
    folder, manifest = _read_folder(path)
    INDEX.verify(folder, manifest.files)
    return manifest


def _read_folder(path: str | Path) -> tuple[Path, Manifest]:
    folder = index_folder(path)
    return folder, INDEX.read(folder, "Point env.index to a folder that was written by querylect index build.")


def load_or_raise(folder: Path, load: Callable[[], Opened]) -> Opened:
    try:
        return load()
    except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise IndexFolderError(
            f"index {folder} cannot be read ({error}). Build it again: querylect index build --overwrite."
        ) from error
