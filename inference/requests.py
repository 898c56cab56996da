"""Validation of a caller's questions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..data.history import parse_history
from ..data.types import Question, Utterance
from ..envs.plan import is_unicode
from ..errors import RequestError

QuestionLike = str | Question
History = Sequence[Utterance | Mapping[str, str]]
"""What was said before a question, oldest first: utterances, or {"role": "user" or "assistant", "content": …}."""


def is_single(questions: object) -> bool:
    return isinstance(questions, (str, Question))


def parse_questions(questions: object, history: History | None = None) -> list[Question]:
    """One or several questions as a list; `history` is that of a single one.

    Raises RequestError that names the invalid one, and for a history of several.
    """
    if is_single(questions) or not isinstance(questions, list | tuple):
        question = _question(questions, "the question")
        return [question if history is None else replace(question, history=_history(history, "the question"))]
    if history is not None:
        raise RequestError(
            "history belongs to one question, and several were given; give each a Question with its own."
        )
    return [_question(item, f"question {number} of {len(questions)}") for number, item in enumerate(questions, start=1)]


def _question(value: object, label: str) -> Question:
    question = value if isinstance(value, Question) else Question("", value)  # type: ignore[arg-type]
    if not isinstance(question.text, str) or not question.text.strip():
        raise RequestError(f"{label} is {question.text!r}; expected a text that is not blank, or a Question.")
    if not all(map(is_unicode, (question.text, *question.options))):
        raise RequestError(f"{label}, {question.text!r}, holds half of a surrogate pair, which is no text.")
    return replace(question, history=_history(question.history, label)) if question.history else question


def _history(history: object, label: str) -> tuple[Utterance, ...]:
    try:
        return parse_history(history)
    except ValueError as error:
        raise RequestError(f"{label}: {error}.") from error
