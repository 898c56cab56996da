"""Reads questions from lines and writes rewrites as JSON lines, in batches and without partial lines.

An input line that begins with { is a JSON object with `question` and, optionally, `id`, `options` and `history`, or a
line of BEIR's queries.jsonl, whose fields are `text` and `_id`; any other line is the text of a question.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from ..data.history import parse_history
from ..data.types import Question
from ..errors import ConfigError, DataError
from ..storage import append, parse_json, read_whole, writing
from .rewriter import Rewriter

log = logging.getLogger(__name__)


def read_questions(lines: Iterable[str]) -> Iterator[Question]:
    """The questions of lines, each with the `id` of its line, by default its number. DataError for one that is none."""
    line_numbers: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            question = _question(number, line.strip())
        except ValueError as error:
            raise DataError(f"line {number} is no question: {error}.") from error
        if question is None:
            continue
        if question.id in line_numbers:
            raise DataError(f"line {number} has the id {question.id!r} of line {line_numbers[question.id]}.")
        line_numbers[question.id] = number
        yield question


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
        """Read the existing records. Raises ConfigError if the file is not empty without `resume`, or cannot be
        written."""
        self.path = path = path.expanduser()
        if not resume and path.exists() and (not path.is_file() or path.stat().st_size):
            raise ConfigError(f"{path} exists. Go on with it by --resume, or give another file.")
        try:
            path.open("ab").close()
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written ({error.strerror}). Make its folder, or give another."
            ) from error
        rows = read_whole(path, _row, "are no rewrites; the questions are asked again", "Give another file.")
        self.done: Mapping[str, str] = dict(rows)
        """Texts of the questions already in the file, by id."""

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
        with writing(self.path, "Free some space and go on with --resume."):
            append(self.path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def _question(number: int, line: str) -> Question | None:
    """Parse a line; None if it is blank. Raises ValueError with the reason if it is invalid."""
    if not line.startswith("{"):
        return Question(str(number), line) if line else None
    values = parse_json(line)
    text, options = values.get("question", values.get("text")), values.get("options") or []
    if not isinstance(text, str) or not text.strip():
        raise ValueError('it has no "question" (or "text") with a text')
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise ValueError('its "options" are no list of texts')
    name = str(values.get("id", values.get("_id", number)))
    return Question(name, text.strip(), tuple(options), parse_history(values.get("history")))


def _row(line: bytes) -> tuple[str, str] | None:
    try:
        record = parse_json(line)
        history = parse_history(record.get("history"))
        return str(record["id"]), Question("", str(record["question"]), history=history).in_context
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
