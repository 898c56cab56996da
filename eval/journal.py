"""What a cell of an evaluation has answered so far: a folder that only grows, whatever kills the process.

`cell.json` says what was asked of what; the folder is named by its fingerprint, so that answers are never taken for
those of another question, model, prompt or index. `records.jsonl` gets one line per record, a batch at a time, forced
to the disk. A last line without its end, which a killed process leaves, is cut off before the next one is written. A
question that is answered again, because it was unscorable, has further lines, and the last ones count. An answer that a
model never gave has no line there; `missing.jsonl` says why.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.files import writing
from ..data.lines import append, cut_off_half_a_line
from ..data.types import Question
from ..errors import DataError
from .identity import digest
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
        self.unanswered = self.folder / "missing.jsonl"
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
            question, turn, sample = record.question_id, record.turn, record.sample
            found[question, turn, sample] = record
            later = turn + 1
            while found.pop((question, later, sample), None):  # it followed an earlier attempt at this turn
                later += 1
        return list(found.values())

    def missing(self) -> dict[Key, str]:
        """Why answers are missing that were asked for and never came, by the reason of the last attempt."""
        if not self.unanswered.is_file():
            return {}
        cut_off_half_a_line(self.unanswered)
        try:
            rows = [json.loads(line) for line in self.unanswered.read_text(encoding="utf-8").splitlines()]
            reasons = {(row["question_id"], row["turn"], row["sample"]): str(row["reason"]) for row in rows}
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.unanswered} cannot be read ({error}). Remove it: no answer stands in it."
            ) from error
        there = {(record.question_id, record.turn, record.sample) for record in self.read()}
        return {key: reason for key, reason in reasons.items() if key not in there}

    def miss(self, reasons: Mapping[Key, str]) -> None:
        """Note why answers are missing, beside those that came. Raises StorageError as `append`."""
        if not reasons:
            return
        names = ("question_id", "turn", "sample", "reason")
        lines = [json.dumps(dict(zip(names, (*key, reason), strict=True))) + "\n" for key, reason in reasons.items()]
        self._add(self.unanswered, "".join(lines))

    def append(self, records: Iterable[EvalRecord]) -> None:
        """Add records and force them to the disk. Raises StorageError where it does not take them."""
        self._add(self.records, "".join(map(record_line, records)))

    def _add(self, path: Path, lines: str) -> None:
        with writing(path, "Free some space and give the command again: what is there is kept."):
            if not path.exists():
                write_text(self.folder / "cell.json", json.dumps(self.identity, ensure_ascii=False, indent=1) + "\n")
            cut_off_half_a_line(path)
            append(path, lines)


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
