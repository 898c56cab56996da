"""What was answered so far: two files of JSON lines, about contents and about pairs, that only grow.

A line is on the disk before the next batch is asked; half a line that a killed process left is cut off. Lines that this
version cannot read are passed over, and what they answered is asked again.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ..data.files import writing
from ..data.lines import append, read_whole
from .asking import Asked, AskedPair, asked_of, pair_of

ASKED, PAIRS = "asked.jsonl", "pairs.jsonl"
One = TypeVar("One", Asked, AskedPair)


class Journal:
    """The answers in a folder, by key."""

    def __init__(self, folder: Path | None) -> None:
        """Read what there is; None is an empty one. Raises StorageError where a file cannot be read or mended."""
        self._folder = folder
        self.asked: dict[str, Asked] = {one.key: one for one in _read(folder, ASKED, asked_of)}
        self.pairs: dict[str, AskedPair] = {one.key: one for one in _read(folder, PAIRS, pair_of)}

    def keep(self, asked: Asked) -> None:
        """Add what came of a content. Raises StorageError where the disk does not take it."""
        self._append(ASKED, asdict(asked))
        self.asked[asked.key] = asked

    def keep_pair(self, pair: AskedPair) -> None:
        """Add a verdict on a pair. Raises as `keep`."""
        self._append(PAIRS, asdict(pair))
        self.pairs[pair.key] = pair

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        assert self._folder is not None, "an empty journal is never written"
        path = self._folder / name
        with writing(path, "Free some space and give the same command again: what is there is kept."):
            append(path, json.dumps(row, ensure_ascii=False) + "\n")


def _read(folder: Path | None, name: str, of: Callable[[Mapping[str, Any]], One]) -> list[One]:
    def row(line: bytes) -> One | None:
        try:
            return of(json.loads(line))
        except (ValueError, KeyError, TypeError):
            return None

    if folder is None:
        return []
    return read_whole(
        folder / name,
        row,
        useless="cannot be read; they are asked for again",
        unreadable="Remove it, or name another folder.",
    )
