"""sha256 of files and model folders: what an index is recognised by."""

import hashlib
from pathlib import Path

from ..data.files import file_sha256

_NOT_THE_MODEL = {".md", ".py", ".pyc", ".lock"}


def folder_sha256(folder: Path) -> str:
    """sha256 over names and contents of the files that make up a model: weights, settings, tokenizer.

    Hidden files, source code and readme files are left out: they do not change what the model computes.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and path.suffix not in _NOT_THE_MODEL and not any(part[0] == "." for part in name.parts):
            digest.update(f"{name.as_posix()}\n{file_sha256(path)}\n".encode())
    return digest.hexdigest()
