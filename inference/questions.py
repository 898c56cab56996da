"""Questions of a caller, as Python values or as lines of text or JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..data.history import parse_history
from ..data.types import Question, Utterance
from ..envs.plan import is_unicode
from ..errors import DataError, RequestError
from ..storage import parse_json

QuestionLike = str | Question
History = Sequence[Utterance | Mapping[str, str]]
"""What was said before a question, oldest first: utterances, or {"role": "user" or "assistant", "content": …}."""


def is_single(questions: object) -> bool:
    """Whether one question is given, and not a list of them."""
    return not isinstance(questions, list | tuple)


def parse_questions(questions: object, history: History | None = None) -> list[Question]:
    """One or several questions as a list; `history` is that of a single one.

    Raises RequestError that names the invalid one, and for a history of several.
    """
    items = [questions] if is_single(questions) else list(questions)  # type: ignore[call-overload]
    if history is not None and not is_single(questions):
        raise RequestError("history belongs to one question; give each of several a Question with its own.")
    parsed = []
    for number, item in enumerate(items, start=1):
        question = item if isinstance(item, Question) else Question("", item)
        label = f"question {number} of {len(items)}"
        if not (isinstance(question.text, str) and question.text.strip() and is_unicode(question.text)):
            raise RequestError(f"{label} is {question.text!r}; expected a text that is not blank, or a Question.")
        try:
            utterances = parse_history(question.history if history is None else history)
        except ValueError as error:
            raise RequestError(f"{label}: {error}.") from error
        parsed.append(replace(question, history=utterances))
    return parsed


def read_questions(lines: Iterable[str]) -> Iterator[Question]:
    """The questions of lines, each with the `id` of its line, by default its number; blank lines are left out.

    A line that begins with { is a JSON object with `question` and, optionally, `id`, `options` and `history`, or a line
    of BEIR's queries.jsonl, whose fields are `text` and `_id`. Raises DataError that names a line without a question.
    """
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line.startswith("{"):
            if line:
                yield Question(str(number), line)
            continue
        try:
            values = parse_json(line)
            text = values.get("question", values.get("text"))
            if not isinstance(text, str) or not text.strip():
                raise ValueError('it has no "question" (or "text") with a text')
            history = parse_history(values.get("history"))
        except ValueError as error:
            raise DataError(f"line {number} is no question: {error}.") from error
        name = str(values.get("id", values.get("_id", number)))
        yield Question(name, text.strip(), tuple(map(str, values.get("options") or ())), history)
