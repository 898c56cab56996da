"""What a reader answered, one record per case, batch by batch: shared by `querylect answers` and `querylect paper`.

A case whose key is in the journal keeps its record. The others are made in batches, each of which is on the disk before
the next begins, so a command that is rerun after a kill resumes where it stopped.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...errors import EngineUnavailableError
from ...llms.access import Llm
from ...storage import KeyedJournal, Record

Case = TypeVar("Case")
Row = TypeVar("Row", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderRecord:
    """One system's answer to one question."""

    system: str
    question_id: str
    question: str
    documents: tuple[str, ...]
    """Ids of the documents in the prompt, in order."""
    answer: str | None
    """None where it is missing."""
    chosen: str
    """Multiple choice: the letter of the option that the answer names; "" where it names none."""
    cut: bool
    """Whether the answer was cut at its token limit."""
    scores: Mapping[str, float | None]
    """By metric; None where the answer is missing or the metric does not apply."""
    key: str
    """Hash of everything that the record depends on."""

    @property
    def whole(self) -> bool:
        """Whether nothing of it has to be asked again."""
        return self.answer is not None


Answered = TypeVar("Answered", bound=ReaderRecord)


def open_journal(path: Path, kind: type[Answered]) -> KeyedJournal[Answered]:
    """The journal of a run; records that are not whole are made again."""
    return KeyedJournal(path, kind, complete=lambda record: record.whole)


def keyed_records(
    cases: Sequence[tuple[Case, str]],
    journal: KeyedJournal[Record],
    make: Callable[[Sequence[tuple[Case, str]]], Sequence[Record]],
    reuse: Callable[[Case, Record], Record],
    batch: int,
    advance: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """The record of each case with its key, in order.

    `make` answers some cases; of those with the same key, only the first is asked. `reuse` adapts a record to a case:
    to its name and to what is right, which are no part of the key. `advance` is called with the number of cases made
    so far and of all that have to be made.
    """
    recorded = {key: record for _, key in cases if (record := journal.get(key)) is not None}
    unknown: dict[str, Case] = {}
    for case, key in cases:
        if key not in recorded:
            unknown.setdefault(key, case)
    pending = [(case, key) for key, case in unknown.items()]
    for start in range(0, len(pending), batch):
        part = pending[start : start + batch]
        new = make(part)
        journal.append(new)
        recorded |= {key: record for (_, key), record in zip(part, new, strict=True)}
        if advance is not None:
            advance(start + len(part), len(pending))
    return [reuse(case, recorded[key]) for case, key in cases]


def by_row(records: Iterable[Answered], row: Callable[[Answered], Row]) -> dict[Row, dict[str, Answered]]:
    """The records by row of a table, then by question. Raises ValueError for two of one question in a row."""
    rows: dict[Row, dict[str, Answered]] = {}
    for record in records:
        answers = rows.setdefault(row(record), {})
        if record.question_id in answers:
            raise ValueError(f"the question {record.question_id!r} has two records in the row {row(record)}")
        answers[record.question_id] = record
    return rows


def refuse_silence(missing: Sequence[bool], reader: Llm) -> None:
    """Raise EngineUnavailableError where every reply is missing; `missing` has one entry for each."""
    if missing and all(missing):
        raise EngineUnavailableError(
            f"none of {len(missing)} questions got a reply ({dict(reader.costs.missing)}); nothing was tabulated. "
            "Check the reader and run the same command again."
        )


def reader_name(model: str) -> str:
    """The folder name of a reader: the last part of the model's name in letters, digits, dots, - and _."""
    last = re.split(r"[/:]", model.rstrip("/"))[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip(".-") or "reader"
