"""What a cell of an evaluation has answered so far: a folder that only grows, whatever kills the process.

`cell.json` says what was asked of what; the folder is named by its fingerprint, so that answers are never taken for
those of another question, model, prompt or index. `records.jsonl` gets one line per record, a batch at a time, forced
to the disk. A last line without its end, which a killed process leaves, is cut off before the next one is written. A
question that is answered again, because it was unscorable, has further lines, and the last ones count.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.types import Question
from ..errors import StorageError
from .identity import digest
from .lines import append, cut_off_half_a_line
from .records import EvalRecord, read_records, record_line, write_text

Key = tuple[str, int, int]
"""Question id, turn, sample."""


def fingerprint(identity: Mapping[str, Any]) -> str:
    """The name of what answers depend on: 20 hex digits of the SHA-256 of `identity`, plain data."""
    return digest(identity)[:20]


class Journal:
    """The folder of one cell."""

    def __init__(self, cells: Path, identity: Mapping[str, Any]) -> None:
        """`identity`: everything that the answers depend on, as plain data."""
        self.fingerprint = fingerprint(identity)
        self.folder = cells / self.fingerprint
        self.records = self.folder / "records.jsonl"
        self.identity = identity

    def read(self) -> list[EvalRecord]:
        """The records that count, in the order in which their questions were first answered.

        Raises DataError for a whole line that is no record.
        """
        if not self.records.is_file():
            return []
        cut_off_half_a_line(self.records)
        found: dict[Key, EvalRecord] = {}
        for record in read_records(self.records):
            found[record.question_id, record.turn, record.sample] = record
        return list(found.values())

    def append(self, records: Iterable[EvalRecord]) -> None:
        """Add records and force them to the disk. Raises StorageError where it does not take them."""
        lines = "".join(map(record_line, records))
        try:
            if not self.records.exists():
                write_text(self.folder / "cell.json", json.dumps(self.identity, ensure_ascii=False, indent=1) + "\n")
            cut_off_half_a_line(self.records)
            append(self.records, lines)
        except OSError as error:
            raise StorageError(
                f"{self.records} could not be written ({error}). Free some space and give the command again: what is "
                "there is kept."
            ) from error


def finished(
    records: Iterable[EvalRecord], questions: Sequence[Question], turns: Sequence[int], samples: int
) -> set[str]:
    """Ids of the questions, in the words of `questions`, that are scored at every turn and in every sample."""
    texts = {question.id: question.text for question in questions}
    scored: dict[str, set[tuple[int, int]]] = {}
    for record in records:
        if record.question == texts.get(record.question_id) and None not in record.metrics.values():
            scored.setdefault(record.question_id, set()).add((record.turn, record.sample))
    wanted = {(turn, sample) for turn in turns for sample in range(samples)}
    return {question for question, found in scored.items() if wanted <= found}
