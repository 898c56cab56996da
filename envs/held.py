"""Whether the files of an opened index are still as long as they were.

They are memory-mapped. Of a file that is cut meanwhile, what is left of its last page reads as zeros, which would be
scores and texts like any other; reading a page behind that ends the process (SIGBUS). So the length of every file is
looked at before and after what is read counts: one system call each, and no file is read for it.
"""

import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from .manifest import FileEntry


class HeldFiles:
    """The files that were there when the index was opened, also where others have taken their names since."""

    def __init__(self, folder: Path, files: Mapping[str, FileEntry]) -> None:
        """Hold the files of a manifest open. Raises OSError."""
        self._files: list[tuple[Path, int, int]] = []
        for name, entry in files.items():
            descriptor = os.open(folder / name, os.O_RDONLY)
            weakref.finalize(self, os.close, descriptor)
            self._files.append((folder / name, descriptor, entry.size))

    @property
    def damage(self) -> str:
        """What has happened to the first file that has another length now; "" where none has."""
        for path, descriptor, size in self._files:
            found = os.fstat(descriptor).st_size
            if found != size:
                return f"{path} has {found} bytes and had {size} when it was opened"
        return ""
