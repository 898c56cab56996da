"""The conversation before a question: read from data, shown as text, and cut to a budget."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from .rows import explained
from .types import Question, Utterance

History = Annotated[tuple[Utterance, ...], BeforeValidator(lambda value: value or ())]
"""A list of objects with `role` and `text` (or `content`), oldest first; null is empty."""
_HISTORY: TypeAdapter[tuple[Utterance, ...]] = TypeAdapter(History)


def parse_history(value: object) -> tuple[Utterance, ...]:
    """The utterances of a `History`. Raises ValueError that says which entry is wrong."""
    try:
        return _HISTORY.validate_python(value)
    except ValidationError as error:
        raise ValueError(f"the history is not valid: {explained(error)}") from error


def alternating(texts: Sequence[str]) -> tuple[Utterance, ...]:
    """The utterances of texts that user and assistant say in turn, the user first; blank ones are left out."""
    roles = ("user", "assistant")
    return tuple(Utterance(roles[index % 2], text) for index, text in enumerate(texts) if text.strip())  # type: ignore[arg-type]


def records_of(history: Sequence[Utterance]) -> list[dict[str, str]]:
    """The utterances as plain data, which `parse_history` reads."""
    return [{"role": utterance.role, "text": utterance.text} for utterance in history]


def lines_of(history: Sequence[Utterance]) -> str:
    """The conversation as a prompt shows it, one utterance a line; "" without one."""
    return "\n".join(f"{entry.role.capitalize()}: {' '.join(entry.text.split())}" for entry in history)


def newest(
    history: Sequence[Utterance], budget: int, count: Callable[[str], int], cut: Callable[[str, int], str]
) -> tuple[Utterance, ...]:
    """The newest utterances that fit into `budget`, as `count` measures a text; the oldest of them may be shortened.

    `cut` gives the beginning of a text within a budget.
    """
    selected: list[Utterance] = []
    left = budget
    for utterance in reversed(history):
        size = count(utterance.text)
        text = utterance.text if size <= left else cut(utterance.text, left) if left > 0 else ""
        if text:
            selected.append(Utterance(utterance.role, text))
        if size >= left:
            break
        left -= size
    return tuple(reversed(selected))


def cut_history(question: Question, budget: int) -> Question:
    """The question with only the newest `budget` words of its history: for a model whose tokenizer is not at hand."""
    return replace(question, history=newest(question.history, budget, count_words, first_words))


def count_words(text: str) -> int:
    """How many words a text has, separated by white space."""
    return len(text.split())


def first_words(text: str, count: int) -> str:
    """The first `count` words of a text, with single spaces."""
    return " ".join(text.split()[:count])
