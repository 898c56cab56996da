"""answers.jsonl while it grows: lines are appended, a cut one is repaired, one process writes at a time."""

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from pathlib import Path

from ...data import lines
from ...data.files import writing
from ..records import write_text
from .table import AnswerRecord

_FIELDS = {field.name for field in fields(AnswerRecord)}


class AnswerLog:
    """The answers of a folder. Only those that are there are known again: a missing one is asked for anew."""

    def __init__(self, path: Path) -> None:
        """Reads what a run before this one left. Raises StorageError where the file cannot be read or mended."""
        self.path = path
        found = lines.read_whole(
            path,
            _record,
            useless="are no answers of this version; they are asked for again",
            unreadable="Remove it, or give another --output.",
        )
        self._known = {record.key: record for record in found if record.answer is not None}

    def known(self, key: str) -> AnswerRecord | None:
        """An answer to exactly what `key` names."""
        return self._known.get(key)

    def append(self, records: Iterable[AnswerRecord]) -> None:
        """Add answers; they are on the disk when this returns. Raises StorageError where it does not take them."""
        text = "".join(_line(record) for record in records)
        with writing(self.path, "Free some space and run the same command again."):
            lines.append(self.path, text)

    def finish(self, records: Iterable[AnswerRecord]) -> None:
        """Replace the file by these records, in this order."""
        write_text(self.path, "".join(_line(record) for record in records))


def only_writer(folder: Path) -> AbstractContextManager[None]:
    """Hold the folder for one process. Raises StorageError where another one has it, or it cannot be made."""
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
