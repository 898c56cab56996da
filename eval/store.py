"""The answers of a results folder: one append-only file of records that survives a kill, so nothing is asked twice.

A record's `key` is the sha256 of everything that its answer depends on: settings, prompts, decoding and weights of the
system, index, judgements, versions, and the question. A line replaces earlier ones of its key, turn and sample, and
drops later turns, which followed an earlier attempt. `publish` leaves in the file exactly the records of the tables;
the others move to UNUSED, where they are found again when the settings come back.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from ..configs.load import flat
from ..data.types import Question
from ..errors import ConfigError
from ..storage import append, cut_off_half_a_line, data_sha256, json_object, only_command, parse_json, writing
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
    return data_sha256([settings, asdict(question), grades])


def question_set(questions: Sequence[Question]) -> str:
    """A hash of a set of questions, independent of order."""
    return data_sha256(sorted(json.dumps(asdict(question)) for question in questions))


def refuse_other(path: Path, identity: Mapping[str, object], overwrite: bool = False) -> None:
    """Raise ConfigError where the results in `path` differ from `identity` in an entry that both have, such as the
    questions of a dataset or the weights of a system: no command replaces other results in silence."""
    previous = (json_object(path) or {}).get("identity")
    if overwrite or not isinstance(previous, dict):
        return
    new, old = dict(flat(parse_json(json.dumps(identity)))), dict(flat(previous))
    changes = [f"{key}: {_short(old[key])} → {_short(new[key])}" for key in old if key in new and old[key] != new[key]]
    if changes:
        raise ConfigError(
            f"{path} holds other results, which this would replace ({'; '.join(changes[:3])}). Give another folder "
            "with -o, or replace them with --overwrite."
        )


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:12] if len(text) == 64 else text[:80]
