"""Reads questions from a file or pipe and writes rewrites as JSON lines, in batches and without partial lines.

An input line that begins with { is a JSON object with `question` and, optionally, `id`, `options` and `history`, or a
line of BEIR's queries.jsonl, whose fields are `text` and `_id`; any other line is the text of a question. Invalid lines
are logged with their number and skipped.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Self

from ..data.history import parse_history
from ..data.types import Question, Utterance
from ..envs.plan import is_unicode
from ..errors import ConfigError, DataError, StorageError
from ..storage import append, cut_off_half_a_line, only_writer, parse_json, read_whole
from .rewriter import Rewriter

log = logging.getLogger(__name__)


@dataclass(slots=True)
class QuestionLines:
    """The questions parsed from lines; can be iterated once."""

    source: Iterable[str | bytes]
    history: tuple[Utterance, ...] = ()
    """The history of questions whose line has none."""
    bad: int = 0
    """Number of lines skipped so far."""

    def __iter__(self) -> Iterator[Question]:
        """Questions with the `id` of their line, by default the line number."""
        line_numbers: dict[str, int] = {}
        for number, line in enumerate(self.source, start=1):
            try:
                question = _question(number, line)
                if question is not None and question.id in line_numbers:
                    raise ValueError(f"the id {question.id!r} was that of line {line_numbers[question.id]}")
            except ValueError as error:
                self.bad += 1
                log.warning("line %d is skipped: %s", number, error)
                continue
            if question is not None:
                line_numbers[question.id] = number
                yield question if question.history else replace(question, history=self.history)


def rewritten(rewriter: Rewriter, questions: Iterable[Question], batch: int) -> Iterator[list[dict[str, object]]]:
    """The records of the rewrites, in input order, as lists of up to `batch`."""
    remaining = iter(questions)
    while part := list(islice(remaining, batch)):
        results = rewriter.rewrite(part)
        yield [{"id": result.question.id, **result.record()} for result in results]


def log_failures(answers: int, reasons: Counter[str]) -> None:
    """Log how often the question replaced a failed rewrite."""
    if reasons:
        log.warning(
            "%d of %d answers failed, and the question itself is their text and plan (fallback: true): %s",
            reasons.total(), answers, ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common()),
        )  # fmt: skip


class Output:
    """An output file that is written in whole batches, so that an interrupted command can resume."""

    def __init__(self, path: Path, resume: bool) -> None:
        """Read the existing records, and lock the file until `close`.

        Raises ConfigError if the file is not empty without `resume`, StorageError if another process is writing it or
        it cannot be read.
        """
        self.path = path = path.expanduser()
        self.done: Mapping[str, str] = {}
        """Texts of the questions already in the file, by id."""
        if not resume and path.exists() and (not path.is_file() or path.stat().st_size):
            raise ConfigError(f"{path} exists. Go on with it by --resume, or give another file.")
        self._lock = ExitStack()
        taken = f"another command writes {path} now. Wait until it is done, or give another file."
        self._lock.enter_context(only_writer(path.parent, f".{path.name}.lock", "Give another file.", taken))
        try:
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
        self._lock.close()

    def unanswered(self, questions: Iterable[Question]) -> Iterator[Question]:
        """The questions not yet in the file. Raises ConfigError if one has the id of another question in it."""
        for question in questions:
            existing = self.done.get(question.id)
            if existing is None:
                yield question
            elif existing != question.in_context:
                raise ConfigError(
                    f"{self.path} was written for other questions: {question.id!r} was {existing!r} and is now "
                    f"{question.in_context!r}. Give another file."
                )

    def write(self, records: Iterable[Mapping[str, object]]) -> None:
        """Append records and flush them to disk. Raises StorageError; earlier records are kept."""
        try:
            append(self.path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        except OSError as error:
            with suppress(OSError):
                cut_off_half_a_line(self.path)
            raise StorageError(
                f"{self.path} could not be written ({error.strerror or error}). Its lines are complete: free "
                "some space and go on with --resume."
            ) from error


def read_history(path: Path) -> tuple[Utterance, ...]:
    """The conversation in a JSON file: a list of objects with `role` and `text` (or `content`), oldest first.

    Raises DataError where it is none.
    """
    try:
        return parse_history(parse_json(path.expanduser().read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Give a JSON file.") from error
    except ValueError as error:
        raise DataError(f"{path} holds no conversation: {error}.") from error


def _question(number: int, line: str | bytes) -> Question | None:
    """Parse a line; None if it is blank. Raises ValueError with the reason if it is invalid."""
    try:
        text = (line.decode() if isinstance(line, bytes) else line).removeprefix("\ufeff").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from error
    if not text.startswith("{"):
        return Question(str(number), text) if text else None
    try:
        values = parse_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it begins as a JSON object and is none ({error.msg} at column {error.colno})") from error
    question, options = values.get("question", values.get("text")), values.get("options") or []
    name = values.get("id", values.get("_id", number))
    if not isinstance(question, str) or not question.strip():
        raise ValueError('it has no "question" (or "text") with a text')
    options = list(options.values()) if isinstance(options, dict) else options
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise ValueError('its "options" are no list of texts')
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise ValueError('its "id" (or "_id") is neither a text nor a whole number')
    if not all(map(is_unicode, (question, str(name), *options))):
        raise ValueError("it holds half of a surrogate pair, which is no text")
    return Question(str(name), question.strip(), tuple(options), parse_history(values.get("history")))


def _row(line: bytes) -> tuple[str, str] | None:
    try:
        record = parse_json(line)
        history = parse_history(record.get("history"))
        return str(record["id"]), Question("", str(record["question"]), history=history).in_context
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
