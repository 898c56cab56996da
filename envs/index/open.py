"""Opens and verifies an index: a folder with `manifest.json` and the files that it names, created atomically.

The manifest records what was indexed and how (recipe, corpus hash, model fingerprint) and the sha256 of every file.
Opening checks the manifest's own hash and the size of every file but reads no file; `verify_index` reads them all.
Files are .npy arrays, texts and FAISS indexes, all memory-mapped; nothing is ever unpickled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...errors import IndexFolderError
from .documents import Documents
from .file_guard import GuardedFiles
from .manifest import Manifest, check_content, check_sizes, read_manifest

Opened = TypeVar("Opened")


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
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise IndexFolderError(f"index folder {folder} does not exist. Build it: querylect index build.")
    manifest = read_manifest(folder)
    check_sizes(folder, manifest.files)
    return folder, manifest


def load_or_raise(folder: Path, load: Callable[[], Opened]) -> Opened:
    try:
        return load()
    except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise IndexFolderError(
            f"index {folder} cannot be read ({error}). Build it again: querylect index build --overwrite."
        ) from error
