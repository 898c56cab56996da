"""What a caller asks, checked: questions, and the documents that a later turn is shown."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ..data.types import Document, Question
from ..envs.plan import is_unicode
from ..envs.wire import HitBody
from ..errors import RequestError

Asked = str | Question
Shown = Document | HitBody | str
"""A document that a later turn is shown: of a ranking, or a plain text."""
Result = TypeVar("Result")

_EXPECTED = "expected a text that is not blank, or a Question"


def is_one(questions: Any) -> bool:
    """Whether one question is asked, and not several."""
    return isinstance(questions, (str, Question))


def checked(questions: Any) -> list[Question]:
    """The questions, one or several. Raises RequestError that names what is none."""
    if is_one(questions):
        return [_question(questions, "the question")]
    if isinstance(questions, (bytes, Mapping)) or not isinstance(questions, Iterable):
        raise RequestError(f"the question is {_seen(questions)}; {_EXPECTED}, or a list of them.")
    asked = list(questions)
    return [_question(one, f"question {number} of {len(asked)}") for number, one in enumerate(asked, start=1)]


def document_of(shown: Shown) -> Document:
    """A hit, a document or a text as a document."""
    if isinstance(shown, HitBody):
        return shown.document
    return shown if isinstance(shown, Document) else Document("", "", shown)


def like(questions: Any, results: list[Result]) -> Any:
    """One result for one question, a list for several."""
    return results[0] if is_one(questions) else results


def _question(asked: Any, which: str) -> Question:
    text = asked.text if isinstance(asked, Question) else asked
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{which} is {_seen(text)}; {_EXPECTED}.")
    question = asked if isinstance(asked, Question) else Question("", text)
    if not all(map(is_unicode, (question.text, *question.options))):
        raise RequestError(f"{which}, {text!r}, holds half of a surrogate pair, which is no text.")
    return question


def _seen(value: Any) -> str:
    if isinstance(value, str):
        return f"{value!r}, which is blank" if value else "the empty text ''"
    return "None" if value is None else f"a {type(value).__name__} ({str(value)[:40]!r})"
