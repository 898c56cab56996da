"""The answers so far, in two append-only JSON-lines files: one about contents, one about pairs.

A line is on the disk before the next batch is asked; an incomplete last line of a killed process is cut off. Lines that
this version cannot parse are skipped, and their questions are asked again.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ..storage import append, read_whole, writing
from .asking import AskedPair, LineAnswers, asked_of, pair_of

ASKED, PAIRS = "asked.jsonl", "pairs.jsonl"
Record = TypeVar("Record", LineAnswers, AskedPair)


class AnswerJournal:
    """The answers in a folder, by key."""

    def __init__(self, folder: Path | None) -> None:
        """Read the files; without a folder it is empty. Raises StorageError if a file cannot be read or repaired."""
        self._folder = folder
        self.asked: dict[str, LineAnswers] = {record.key: record for record in _read(folder, ASKED, asked_of)}
        self.pairs: dict[str, AskedPair] = {record.key: record for record in _read(folder, PAIRS, pair_of)}

    def keep(self, record: LineAnswers) -> None:
        """Add the answers about a content. Raises StorageError if they cannot be written."""
        self._append(ASKED, asdict(record))
        self.asked[record.key] = record

    def keep_pair(self, pair: AskedPair) -> None:
        """Add a verdict on a pair. Raises as `keep`."""
        self._append(PAIRS, asdict(pair))
        self.pairs[pair.key] = pair

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        assert self._folder is not None, "an empty journal is never written"
        path = self._folder / name
        with writing(path, "Free some space and give the same command again: what is there is kept."):
            append(path, json.dumps(row, ensure_ascii=False) + "\n")


def _read(folder: Path | None, name: str, parse: Callable[[Mapping[str, Any]], Record]) -> list[Record]:
    def parse_line(line: bytes) -> Record | None:
        try:
            return parse(json.loads(line))
        except (ValueError, KeyError, TypeError):
            return None

    if folder is None:
        return []
    return read_whole(
        folder / name,
        parse_line,
        useless="cannot be read; they are asked for again",
        unreadable="Remove it, or name another folder.",
    )
