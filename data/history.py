"""The conversation before a question: read from data, shown as text, and cut to a budget."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .types import Question, Utterance

_ROLES = {"user": "User", "assistant": "Assistant"}
_EXPECTED = 'expected a list of {"role": "user" or "assistant", "text": …}, oldest first'


def parse_history(value: object) -> tuple[Utterance, ...]:
    """The utterances of a list of objects with `role` and `text`, or `content` as chat APIs call it; None is empty.

    Raises ValueError that says which entry is wrong.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError(f"the history is {value!r}; {_EXPECTED}")
    return tuple(_utterance(entry, number) for number, entry in enumerate(value, start=1))


def alternating(texts: Sequence[str]) -> tuple[Utterance, ...]:
    """The utterances of texts that user and assistant say in turn, the user first; blank ones are left out."""
    roles = ("user", "assistant")
    return tuple(Utterance(roles[index % 2], text) for index, text in enumerate(texts) if text.strip())  # type: ignore[arg-type]


def records_of(history: Sequence[Utterance]) -> list[dict[str, str]]:
    """The utterances as plain data, which `parse_history` reads."""
    return [{"role": utterance.role, "text": utterance.text} for utterance in history]


def lines_of(history: Sequence[Utterance]) -> str:
    """The conversation as a prompt shows it, one utterance a line; "" without one."""
    return "\n".join(f"{_ROLES[entry.role]}: {' '.join(entry.text.split())}" for entry in history)


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


def _utterance(entry: object, number: int) -> Utterance:
    if isinstance(entry, Utterance):
        entry = {"role": entry.role, "text": entry.text}
    if not isinstance(entry, Mapping):
        raise ValueError(f"entry {number} of the history is {entry!r}; {_EXPECTED}")
    role, text = entry.get("role"), entry.get("text", entry.get("content"))
    if role not in tuple(_ROLES):  # in JSON a role may be unhashable
        raise ValueError(f"the role of entry {number} of the history is {role!r}; {_EXPECTED}")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the text of entry {number} of the history is {text!r}; {_EXPECTED}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text of entry {number} of the history is not valid Unicode ({error})") from error
    return Utterance(role, text.strip())
