"""Detects files of an opened index that were truncated.

The files are memory-mapped. If one is truncated, the rest of its last page reads as zeros, which would pass for valid
scores and texts, and reading beyond that page kills the process (SIGBUS). So the length of every file is checked before
and after a read whose result counts: one system call per file, and no file is read for it.
"""

import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from .manifest import FileEntry


class GuardedFiles:
    """The files of an index as they were when it was opened, even if others have replaced them since."""

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
