"""The answers of a results folder: one append-only file of records that survives a kill, so nothing is asked twice.

A record's `key` is the sha256 of everything that its answer depends on: settings, prompts, decoding and weights of the
system, index, judgements, versions, and the question. A line replaces earlier ones of its key, turn and sample, and
drops later turns, which followed an earlier attempt. `publish` leaves in the file exactly the records of the tables;
the others move to UNUSED, where they are found again when the settings come back.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..data.types import Question
from ..storage import append, cut_off_half_a_line, data_sha256, only_command, writing
from .records import EvalRecord, read_records, record_line, write_records

RECORDS = "eval.jsonl"
UNUSED = "unused.jsonl"
RERUN = "run the same command again: finished answers are kept."
"""The end of a message about a command that stopped."""


class RecordStore:
    """The records of a folder, which this process alone writes (`open_store`)."""

    def __init__(self, folder: Path) -> None:
        """Raises DataError for a complete line that is not a record, StorageError for a file that cannot be mended."""
        self.path, self._unused = folder / RECORDS, folder / UNUSED
        self._by_key: dict[str, dict[tuple[int, int], EvalRecord]] = {}
        for path in (self._unused, self.path):
            if path.is_file():
                with writing(path):
                    cut_off_half_a_line(path)
                self._keep(read_records(path))

    def get(self, key: str) -> list[EvalRecord]:
        """The records of one question's answer, of all its turns and samples; [] if it was never asked."""
        return list(self._by_key.get(key, {}).values())

    def add(self, records: Iterable[EvalRecord]) -> None:
        """Append records. Raises StorageError where the disk does not take them."""
        records = list(records)
        with writing(self.path):
            append(self.path, "".join(map(record_line, records)))
        self._keep(records)

    def publish(self, records: Iterable[EvalRecord]) -> None:
        """Make these the records of the file, in this order. Raises StorageError."""
        records = list(records)
        used = {(record.key, record.turn, record.sample) for record in records}
        unused = [
            record
            for key, answers in self._by_key.items()
            for (turn, sample), record in answers.items()
            if (key, turn, sample) not in used
        ]
        if unused:
            write_records(self._unused, unused)
        write_records(self.path, records)
        if not unused:
            self._unused.unlink(missing_ok=True)

    def _keep(self, records: Iterable[EvalRecord]) -> None:
        for record in records:
            answers = self._by_key.setdefault(record.key, {})
            answers[record.turn, record.sample] = record
            later = record.turn + 1
            while answers.pop((later, record.sample), None):
                later += 1


@contextmanager
def open_store(folder: Path) -> Iterator[RecordStore]:
    """The store of a folder, locked until the end of the block. Raises StorageError where another command has it."""
    with only_command(folder):
        yield RecordStore(folder)


def answer_key(settings: str, question: Question, grades: Mapping[str, int] | None = None) -> str:
    """The key of a question's answer. `settings` is a sha256 of all else that it depends on, `grades` are those of the
    question's judged documents."""
    context = [question.id, question.text, question.options, [[u.role, u.text] for u in question.history]]
    context += [question.reference_rewrite, sorted(question.excluded), sorted((grades or {}).items())]
    return data_sha256([settings, context])
