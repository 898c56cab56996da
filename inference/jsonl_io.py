"""Reads questions from lines.

An input line that begins with { is a JSON object with `question` and, optionally, `id`, `options` and `history`, or a
line of BEIR's queries.jsonl, whose fields are `text` and `_id`; any other line is the text of a question.
"""

from collections.abc import Iterable, Iterator

from ..data.history import parse_history
from ..data.types import Question
from ..errors import DataError
from ..storage import parse_json


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
