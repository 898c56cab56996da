"""Validation of a caller's questions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..data.history import parse_history
from ..data.types import Question, Utterance
from ..envs.plan import is_unicode
from ..errors import RequestError

QuestionLike = str | Question
History = Sequence[Utterance | Mapping[str, str]]
"""What was said before a question, oldest first: utterances, or {"role": "user" or "assistant", "content": …}."""
_EXPECTED = "expected a text that is not blank, or a Question"


def is_single(questions: object) -> bool:
    return isinstance(questions, (str, Question))


def parse_questions(questions: object, history: History | None = None) -> list[Question]:
    """One or several questions as a list; `history` is that of a single one.

    Raises RequestError that names the invalid one, and for a history of several.
    """
    if history is not None:
        if isinstance(questions, list | tuple):
            raise RequestError(
                "history belongs to one question, and several were given; give each a Question with its own history."
            )
        question = _question(questions, "the question")
        return [replace(question, history=_history(history, "the question"))]
    if is_single(questions):
        return [_question(questions, "the question")]
    if isinstance(questions, (bytes, Mapping)) or not isinstance(questions, Iterable):
        raise RequestError(f"the question is {_describe(questions)}; {_EXPECTED}, or a list of them.")
    items = list(questions)
    return [_question(item, f"question {number} of {len(items)}") for number, item in enumerate(items, start=1)]


def _question(value: object, label: str) -> Question:
    text = value.text if isinstance(value, Question) else value
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{label} is {_describe(text)}; {_EXPECTED}.")
    question = value if isinstance(value, Question) else Question("", text)
    if not all(map(is_unicode, (question.text, *question.options))):
        raise RequestError(f"{label}, {text!r}, holds half of a surrogate pair, which is no text.")
    return replace(question, history=_history(question.history, label)) if question.history else question


def _history(history: object, label: str) -> tuple[Utterance, ...]:
    try:
        return parse_history(history)
    except ValueError as error:
        raise RequestError(f"{label}: {error}.") from error


def _describe(value: object) -> str:
    return f"{value!r}, which is blank" if isinstance(value, str) else f"a {type(value).__name__} ({str(value)[:40]!r})"
