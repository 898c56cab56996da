"""Reads `source.json` of a folder that `querylect data get` wrote: its source, and the sha256 of every file."""

from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml.error import YAMLError

from ..configs.yaml12 import card_metadata
from ..storage import file_sha256, parse_json

SOURCE = "source.json"


@dataclass(frozen=True, slots=True)
class FetchedSource:
    """Contents of `source.json`; empty if there is none."""

    name: str = ""
    kind: str = ""
    licence: str = ""
    ignore_identical_ids: bool = False
    about: dict[str, object] = field(default_factory=dict)
    """`source`: where it was fetched from."""
    files: dict[str, str] = field(default_factory=dict)
    """sha256 by path."""


def source_of(folder: Path) -> FetchedSource:
    """Read `source.json` of a folder."""
    path = folder / SOURCE
    if not path.is_file():
        return FetchedSource()
    metadata = parse_json(path.read_text(encoding="utf-8"))
    return FetchedSource(
        name=metadata["name"],
        kind=metadata["kind"],
        licence=metadata["licence"],
        ignore_identical_ids=metadata["ignore_identical_ids"],
        about={"source": metadata["source"]},
        files={name: entry["sha256"] for name, entry in metadata["files"].items()},
    )


def card_licence(folder: Path) -> str:
    """The licence that the card (README.md) of a fetched folder states in its head; "" without one."""
    card = folder / "README.md"
    try:
        stated = card_metadata(card.read_text(encoding="utf-8", errors="replace")).get("license")
    except (OSError, YAMLError):
        return ""
    names = stated if isinstance(stated, list) else [stated]
    return ", ".join(str(name) for name in names if name)


def changed_files(folder: Path, files: dict[str, str]) -> list[str]:
    """The files that are missing or whose sha256 differs from that in `files`; reads all of them."""
    return [
        name
        for name, expected in files.items()
        if not (folder / name).is_file() or file_sha256(folder / name) != expected
    ]
