"""What lies in a folder that `querylect data get` wrote: `source.json` has where from, and the sha256 of every file."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError
from .files import file_sha256

SOURCE = "source.json"
_AT_ONCE = 2**22


@dataclass(frozen=True, slots=True)
class Source:
    """What `source.json` says; nothing where there is none."""

    name: str = ""
    kind: str = ""
    licence: str = ""
    ignore_identical_ids: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    """Where it was fetched from: `source`, and `revision` where it has one."""
    files: dict[str, str] = field(default_factory=dict)
    """sha256 by path."""


def source_of(folder: Path) -> Source:
    """What `source.json` of a folder says. Raises DataError where it is not what `data get` writes."""
    path = folder / SOURCE
    if not path.is_file():
        return Source()
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Source(
            name=str(said["name"]),
            kind=str(said["kind"]),
            licence=str(said["licence"]),
            ignore_identical_ids=bool(said["ignore_identical_ids"]),
            about={"source": said["source"]},
            files={str(name): str(entry["sha256"]) for name, entry in said["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not what `querylect data get` writes ({error!r}). Fetch the folder again."
        ) from error


def changed_files(folder: Path, files: dict[str, str]) -> list[str]:
    """The files that are missing or have another sha256 than `files` says; reads all of them."""
    return [name for name, expected in files.items() if not _is(folder / name, expected)]


def git_blob_of(path: Path) -> str:
    """The id that git gives to the content of a file: how the Hub names files that are not in large file storage."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while part := file.read(_AT_ONCE):
            digest.update(part)
    return digest.hexdigest()


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and file_sha256(path) == sha256
