"""The answers of one evaluation cell so far: an append-only folder that survives a killed process.

`cell.json` holds the cell's identity, and the folder is named by its fingerprint, so answers are never reused for
another question, model, prompt or index. `records.jsonl` has one line per record, appended batch by batch.
A partial last line of a killed process is removed before the next append. A question answered again (because it was
a failed search) gets further lines, and the last ones count. An answer that the model never gave has no line;
`missing.jsonl` has the reason.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..data.types import Question
from ..errors import DataError
from ..storage import append, cut_off_half_a_line, parse_json, writing
from .identity import digest
from .records import EvalRecord, read_records, record_line, write_json

AnswerKey = tuple[str, int, int]
"""Question id, turn, sample."""
RERUN = "run the same command again: finished answers are kept."
"""The end of a message about an evaluation that stopped."""


def fingerprint(identity: Mapping[str, object]) -> str:
    """20 hex digits of the SHA-256 of `identity` (plain data)."""
    return digest(identity)[:20]


class Journal:
    """The folder of one cell."""

    def __init__(self, cells: Path, identity: Mapping[str, object]) -> None:
        """`identity` is everything the answers depend on, as plain data."""
        self.fingerprint = fingerprint(identity)
        self.folder = cells / self.fingerprint
        self.records = self.folder / "records.jsonl"
        self.unanswered = self.folder / "missing.jsonl"
        self.identity = identity

    def read(self) -> list[EvalRecord]:
        """The records that count, in the order in which their questions were first answered.

        Raises DataError for a complete line that is not a record.
        """
        if not self._whole(self.records):
            return []
        by_key: dict[AnswerKey, EvalRecord] = {}
        for record in read_records(self.records):
            question, turn, sample = record.question_id, record.turn, record.sample
            by_key[question, turn, sample] = record
            later = turn + 1
            while by_key.pop((question, later, sample), None):  # it followed an earlier attempt at this turn
                later += 1
        return list(by_key.values())

    def missing(self) -> dict[AnswerKey, str]:
        """The reason of the last attempt for each answer that was requested and never came."""
        if not self._whole(self.unanswered):
            return {}
        try:
            rows = [parse_json(line) for line in self.unanswered.read_text(encoding="utf-8").splitlines()]
            reasons = {(row["question_id"], row["turn"], row["sample"]): str(row["reason"]) for row in rows}
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.unanswered} cannot be read ({error}). Remove it: no answer stands in it."
            ) from error
        answered = {(record.question_id, record.turn, record.sample) for record in self.read()}
        return {key: reason for key, reason in reasons.items() if key not in answered}

    def _whole(self, path: Path) -> bool:
        """True if the file exists. A partial last line is removed."""
        if not path.is_file():
            return False
        cut_off_half_a_line(path)
        return True

    def miss(self, reasons: Mapping[AnswerKey, str]) -> None:
        """Append the reasons of missing answers to missing.jsonl. Raises StorageError as `append`."""
        if not reasons:
            return
        names = ("question_id", "turn", "sample", "reason")
        lines = [json.dumps(dict(zip(names, (*key, reason), strict=True))) + "\n" for key, reason in reasons.items()]
        self._add(self.unanswered, "".join(lines))

    def append(self, records: Iterable[EvalRecord]) -> None:
        """Append records. Raises StorageError where the disk does not take them."""
        self._add(self.records, "".join(map(record_line, records)))

    def _add(self, path: Path, lines: str) -> None:
        with writing(path):
            cell = self.folder / "cell.json"
            if not cell.exists():
                write_json(cell, self.identity)
            cut_off_half_a_line(path)
            append(path, lines)


def finished(
    records: Iterable[EvalRecord], questions: Sequence[Question], turns: Sequence[int], samples: int
) -> set[str]:
    """Ids of the questions, with the text they have in `questions`, that are scored at every turn and sample."""
    by_id = {question.id: question for question in questions}
    scored: dict[str, set[tuple[int, int]]] = {}
    for record in records:
        if record.answers(by_id.get(record.question_id)) and None not in record.metrics.values():
            scored.setdefault(record.question_id, set()).add((record.turn, record.sample))
    expected = {(turn, sample) for turn in turns for sample in range(samples)}
    return {question for question, actual in scored.items() if expected <= actual}
