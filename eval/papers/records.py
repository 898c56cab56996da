"""What every system did on every question of a task, one JSON object a line, appended while a paper runs.

A line is reused only where its key, a hash of all its inputs, is the same. A line with a missing reply or ranking is
never reused: its question is run again.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ... import storage as lines
from ...methods.method import MISSING, NO_RANKING
from ...storage import writing
from ..records import write_text

PASSING = (MISSING, NO_RANKING)
"""Transient failures, which another run may not meet."""


@dataclass(frozen=True, slots=True)
class PaperRecord:
    """One system on one question."""

    task: str
    system: str
    question_id: str
    question: str
    documents: tuple[str, ...]
    """Ids of the context, in the order in which the reader saw it."""
    searched: bool
    failure: str
    """Why the method came to no end; "" where it did."""
    text: str | None
    """All that the reader wrote; None where the method answered, or nobody did."""
    answer: str | None
    """What was read out of it; None without a failure where the reader did not reply."""
    chosen: str
    """Multiple choice: the letter of the option that the answer names; "" where it names none."""
    cut: bool
    """Whether the answer was cut at its longest."""
    scores: Mapping[str, float | None]
    """By metric; None where there is no answer."""
    judged: Mapping[str, Mapping[str, Any]]
    """The verdicts by judge; a judge who had nothing to judge is not there."""
    notes: Mapping[str, Any]
    """What the method said on the way."""
    prompts: tuple[str, ...]
    """Versions of the prompts that the method used."""
    spent: Mapping[str, int | None]
    """Of the method: calls, prompt_tokens, tokens, searches; of the reader: reader_prompt_tokens, reader_tokens.
    Tokens are None where an endpoint does not say."""
    key: str

    @property
    def reason(self) -> str:
        """Why there is no answer; "" where there is one."""
        return self.failure or (MISSING if self.answer is None else "")

    @property
    def whole(self) -> bool:
        """Whether it is complete, so that nothing has to be asked again."""
        return self.reason not in PASSING and not any(verdict["missing"] for verdict in self.judged.values())


_FIELDS = {field.name for field in fields(PaperRecord)}


class PaperLog:
    """questions.jsonl while it grows."""

    def __init__(self, path: Path) -> None:
        """Reads what runs before this one left. Raises StorageError where the file cannot be read or mended."""
        self.path = path
        records = lines.read_whole(
            path,
            _record,
            useless="are no records of this version; they are run again",
            unreadable="Remove it, or give another --output.",
        )
        self._known = {record.key: record for record in records if record.whole}

    def known(self, key: str) -> PaperRecord | None:
        """The complete record with this key, or None."""
        return self._known.get(key)

    def append(self, records: Iterable[PaperRecord]) -> None:
        """Append records to the file; `known` finds them from then on.

        Raises StorageError where the disk does not take them.
        """
        new = list(records)
        with writing(self.path, "Free some space and run the same command again."):
            lines.append(self.path, "".join(map(_line, new)))
        self._known |= {record.key: record for record in new if record.whole}

    def finish(self, records: Iterable[PaperRecord]) -> None:
        """Rewrite the file: these records in this order, then the cached records of other settings."""
        current = list(records)
        keys = {record.key for record in current}
        remaining = [record for key, record in self._known.items() if key not in keys]
        write_text(self.path, "".join(map(_line, [*current, *remaining])))


def only_writer(folder: Path) -> AbstractContextManager[None]:
    """Hold the folder for one process. Raises StorageError where another one has it, or it cannot be made."""
    return lines.only_writer(
        folder,
        ".paper.lock",
        unwritable="Give another with --output.",
        taken=f"another process is running a paper into {folder}. Wait for it, or give another --output.",
    )


def _line(record: PaperRecord) -> str:
    return json.dumps(asdict(record), ensure_ascii=False, default=str) + "\n"


def _record(line: bytes) -> PaperRecord | None:
    try:
        row = json.loads(line)
        if set(row) != _FIELDS:
            return None
        return PaperRecord(**{**row, "documents": tuple(row["documents"]), "prompts": tuple(row["prompts"])})
    except (ValueError, TypeError):
        return None
