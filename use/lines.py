"""Many questions from a file or a pipe to many rewrites: JSON lines, a batch at a time, never half a line.

A line that begins with { is a JSON object with `question`, and `id` and `options` where it has them; any other one is a
question by itself. A line that is neither is told with its number and passed over.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Self

from ..data.files import hold
from ..data.lines import append, cut_off_half_a_line, read_whole
from ..data.types import Question
from ..envs.plan import is_unicode
from ..errors import ConfigError, StorageError
from .rewriter import Rewriter

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Lines:
    """The questions of some lines; iterate over it once."""

    source: Iterable[str | bytes]
    bad: int = 0
    """Lines that were passed over so far."""

    def __iter__(self) -> Iterator[Question]:
        """Questions with the id of their line, which is its number where it names none."""
        seen: dict[str, int] = {}
        for number, line in enumerate(self.source, start=1):
            try:
                question = _question(number, line)
                if question is not None and question.id in seen:
                    raise ValueError(f"the id {question.id!r} was that of line {seen[question.id]}")
            except ValueError as error:
                self.bad += 1
                log.warning("line %d is passed over: %s", number, error)
                continue
            if question is not None:
                seen[question.id] = number
                yield question


def rewritten(rewriter: Rewriter, questions: Iterable[Question], batch: int) -> Iterator[list[dict[str, Any]]]:
    """The records of `batch` questions at a time, in their order."""
    waiting = iter(questions)
    while part := list(islice(waiting, batch)):
        results = rewriter.rewrite(part)
        yield [{"id": result.question.id, **result.record()} for result in results]


@dataclass(slots=True)
class FailureCount:
    """How many answers failed, by reason."""

    answers: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count some records."""
        for record in records:
            self.answers += 1
            self.reasons.update([record["failure"]] if record["fallback"] else [])

    def tell(self) -> None:
        """Say in the log how often the question took the place of a rewrite."""
        if self.reasons:
            said = ", ".join(f"{reason} ({count})" for reason, count in self.reasons.most_common())
            log.warning(
                "%d of %d answers failed, and the question itself is their text and plan (fallback: true): %s",
                self.reasons.total(), self.answers, said,
            )  # fmt: skip


class Output:
    """A file of records that one command writes, by whole batches, so that it can go on where it was interrupted."""

    def __init__(self, path: Path, resume: bool) -> None:
        """Look at what is there, and hold the file until `close`.

        Raises ConfigError where the file holds something and is not gone on with, or cannot be written, StorageError
        where another process writes it, or it cannot be read.
        """
        self.path = path
        self.done: Mapping[str, str] = {}
        """The questions that stand there, by id."""
        if not resume and path.exists() and (not path.is_file() or path.stat().st_size):
            raise ConfigError(f"{path} exists. Go on with it by --resume, or give another file.")
        try:
            self._held = path.open("ab")
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written ({error.strerror}). Make its folder, or give another file."
            ) from error
        try:
            hold(
                self._held.fileno(),
                path,
                f"another command writes {path} now. Wait until it is done, or give another file.",
            )
            rows = read_whole(path, _row, "are no rewrites; the questions are asked again", "Give another file.")
        except BaseException:
            self.close()
            raise
        self.done = dict(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._held.close()

    def left(self, questions: Iterable[Question]) -> Iterator[Question]:
        """The questions that are not there yet. Raises ConfigError where another question has the id of one that is."""
        for question in questions:
            there = self.done.get(question.id)
            if there is None:
                yield question
            elif there != question.text:
                raise ConfigError(
                    f"{self.path} was written for other questions: {question.id!r} was {there!r} and is now "
                    f"{question.text!r}. Give another file."
                )

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add records; they are on the disk when this returns. Raises StorageError; what was there stays."""
        try:
            append(self.path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        except OSError as error:
            with suppress(OSError):
                cut_off_half_a_line(self.path)
            raise StorageError(
                f"{self.path} could not be written ({error.strerror or error}). What stands in it is whole: make room "
                "and go on with --resume."
            ) from error


def _question(number: int, line: str | bytes) -> Question | None:
    """None for a blank line. Raises ValueError with what is wrong."""
    try:
        text = (line.decode() if isinstance(line, bytes) else line).removeprefix("\ufeff").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from error
    if not text.startswith("{"):
        return Question(str(number), text) if text else None
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it begins as a JSON object and is none ({error.msg} at column {error.colno})") from error
    asked, options, name = values.get("question"), values.get("options") or [], values.get("id", number)
    if not isinstance(asked, str) or not asked.strip():
        raise ValueError('it has no "question" with a text')
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise ValueError('its "options" are no list of texts')
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise ValueError('its "id" is neither a text nor a whole number')
    if not all(map(is_unicode, (asked, str(name), *options))):
        raise ValueError("it holds half of a surrogate pair, which is no text")
    return Question(str(name), asked.strip(), tuple(options))


def _row(line: bytes) -> tuple[str, str] | None:
    try:
        record = json.loads(line)
        return str(record["id"]), str(record["question"])
    except (ValueError, KeyError, TypeError):
        return None
