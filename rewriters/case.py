"""How prompts show a question and a document, and whether a rewrite repeats a text."""

from collections.abc import Collection, Sequence

from ..data.history import lines_of
from ..data.leakage import words
from ..data.types import Document, Question


def one_line(document: Document) -> str:
    """Title and text, where present, on one line."""
    return " ".join(": ".join(part for part in (document.title, document.text) if part).split())


def question_text(question: Question) -> str:
    """The question, with its answer options, if any, as lettered lines."""
    return "\n".join([question.text, *lettered(question.options)])


def lettered(options: Sequence[str]) -> list[str]:
    """Each option with its letter."""
    return [f"{chr(ord('A') + index)}. {option}" for index, option in enumerate(options)]


def history_text(question: Question) -> str:
    """The conversation before a question, under a heading and with a blank line after it; "" without one."""
    return f"The conversation before the question:\n{lines_of(question.history)}\n\n" if question.history else ""


def case_text(question: Question, options: bool = True) -> str:
    """The question as prompts show it: after its conversation, and followed by its answer options if `options`."""
    text = question_text(question) if options else question.text
    return f"{history_text(question)}Question: {text}"


def repeats(rewrites: Sequence[str], previous: Collection[str]) -> bool:
    """Whether every rewrite has the words of one of `previous` (by `words`), ignoring case and punctuation."""
    return all(words(rewrite) in previous for rewrite in rewrites)
