"""Append-only answers.jsonl: a truncated last line is repaired, and only one process writes at a time."""

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from pathlib import Path

from ... import storage as lines
from ...storage import writing
from ..records import write_text
from .table import AnswerRecord

_FIELDS = {field.name for field in fields(AnswerRecord)}


class AnswerLog:
    """The answers of a folder. Given answers are reused; missing ones are requested again."""

    def __init__(self, path: Path) -> None:
        """Reads the answers of earlier runs. Raises StorageError where the file cannot be read or repaired."""
        self.path = path
        records = lines.read_whole(
            path,
            _record,
            useless="are no answers of this version; they are asked for again",
            unreadable="Remove it, or give another --output.",
        )
        self._by_key = {record.key: record for record in records if record.answer is not None}

    def known(self, key: str) -> AnswerRecord | None:
        """The stored answer for this key, if any."""
        return self._by_key.get(key)

    def append(self, records: Iterable[AnswerRecord]) -> None:
        """Append answers and fsync. Raises StorageError where the disk does not take them."""
        text = "".join(_line(record) for record in records)
        with writing(self.path, "Free some space and run the same command again."):
            lines.append(self.path, text)

    def finish(self, records: Iterable[AnswerRecord]) -> None:
        """Replace the file with these records, in this order."""
        write_text(self.path, "".join(_line(record) for record in records))


def only_writer(folder: Path) -> AbstractContextManager[None]:
    """Lock the folder for one process. Raises StorageError where it is locked by another, or cannot be created."""
    return lines.only_writer(
        folder,
        ".answers.lock",
        unwritable="Give another with --output.",
        taken=f"another process is writing answers into {folder}. Wait for it, or give another --output.",
    )


def _line(record: AnswerRecord) -> str:
    return json.dumps(asdict(record), ensure_ascii=False) + "\n"


def _record(line: bytes) -> AnswerRecord | None:
    try:
        row = json.loads(line)
        if set(row) != _FIELDS:
            return None
        return AnswerRecord(**{**row, "documents": tuple(row["documents"])})
    except (ValueError, TypeError):
        return None
