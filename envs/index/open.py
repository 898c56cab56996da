"""Opens and verifies an index: a folder with `manifest.json` and the files that it names, created atomically.

The manifest records what was indexed and how (recipe, corpus hash, model fingerprint) and the sha256 of every file.
Opening reads no file; `verify_index` reads them all. Files are .npy arrays, texts and FAISS indexes, all memory-mapped;
nothing is ever unpickled.
"""

from dataclasses import dataclass
from pathlib import Path

from .documents import Documents
from .manifest import INDEX, Manifest


@dataclass(frozen=True, slots=True)
class Index:
    """An opened index folder: its manifest and its documents."""

    path: Path
    manifest: Manifest
    documents: Documents


def open_index(path: str | Path) -> Index:
    """Open an index folder without reading its files. Raises IndexFolderError for one that is missing or incomplete."""
    folder, manifest = _read_folder(path)
    return Index(folder, manifest, Documents(folder))


def verify_index(path: str | Path) -> Manifest:
    """Read every file of an index folder and compare its sha256. Raises IndexFolderError."""
    folder, manifest = _read_folder(path)
    INDEX.verify(folder, manifest.files)
    return manifest


def _read_folder(path: str | Path) -> tuple[Path, Manifest]:
    folder = Path(path).expanduser()
    return folder, INDEX.read(folder, "Build it: querylect index build. Or point env.index to one that was.")
