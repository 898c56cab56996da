"""Answers as labelled lines, for models that keep to no JSON: `Verdict: yes`, one part after another.

The form is that of a pydantic model. Every part begins at the start of a line with its label, the key of the field in
words; the parts stand in the order of the fields:

    text, number, choice   `Label: value`
    yes or no              `Label: yes`
    list of texts          `Label:` and a numbered line for each, or `Label: none`
    list of numbers        `Label: 1, 3`, or `Label: none`
    list of models         the lines of the first, the lines of the second, …; or `Label: none`

Values need no quotes and no escapes; a colon in them is text, and so is a label in the middle of a line. The answer
ends with its last part: after the line of a word or number, else at a blank line or a label. What a model says after
that, as small ones do, is not read. Everything else is wrong: a part that is missing, empty, out of its order or a copy
of the request (`<text>`), and text before the first part or before the first number of a list.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

Kind = Literal["text", "yes_no", "choice", "number", "texts", "numbers", "models"]

_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_NONE = "none"
_MARKS = " \t.!*_\"'()[]<>"
"""What may stand around a single word."""
_ITEM = re.compile(r"[ \t]*(?:\d+[.)、](?!\d)|[-*•](?=\s))[ \t]*")
"""What begins an item of a list; "2.5 mg" and "-5" begin none."""
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?")
_PLACEHOLDER = re.compile(r"<[^<>]*>|…|\.{3}")
_BLANK = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a form."""

    key: str
    """The field as the model takes it."""
    label: str
    kind: Kind
    choices: tuple[str, ...] = ()
    """choice: the words to choose from."""
    inner: tuple["Part", ...] = ()
    """models: the parts of each."""
    may_be_empty: bool = True
    """Whether a list may hold nothing."""


@dataclass(frozen=True, slots=True)
class Lines:
    """What was read of one answer."""

    values: Mapping[str, Any]
    """By key, as JSON holds them, of the parts that are there."""
    failure: str = ""
    """What is wrong with the order of the parts; values that do not fit are the model's to refuse."""


def parts_of(form: type[BaseModel]) -> tuple[Part, ...]:
    """The parts of a form. Raises TypeError for a field that no labelled line holds."""
    return tuple(_part(form, name, field) for name, field in form.model_fields.items())


def labels_of(form: type[BaseModel]) -> list[str]:
    """The labels of an answer, in their order; of a list of models those of one of them."""
    return [one.label for part in parts_of(form) for one in (part.inner or (part,))]


def label_pattern(label: str) -> re.Pattern[str]:
    """Finds a label at the start of a line, with the marks that chat models put around it."""
    words = "[ _]".join(map(re.escape, re.split("[ _]", label)))
    return re.compile(rf"^[ \t>*#_-]*{words}[ \t*_]*[:：][ \t*_]*", re.IGNORECASE | re.MULTILINE)


def split_at_labels(text: str, labels: Iterable[str]) -> tuple[str, list[tuple[str, str]]]:
    """What stands before the first label, and each label with what follows it up to the next one."""
    marks = sorted(
        (mark.start(), mark.end(), label) for label in labels for mark in label_pattern(label).finditer(text)
    )
    if not marks:
        return text, []
    ends = [start for start, _, _ in marks[1:]] + [len(text)]
    return text[: marks[0][0]], [(label, text[at:end]) for (_, at, label), end in zip(marks, ends, strict=True)]


def is_placeholder(text: str) -> bool:
    """Whether a part was copied from the request instead of filled in: `<text>`."""
    return _PLACEHOLDER.fullmatch(text.strip()) is not None


def request(form: type[BaseModel], gist: Mapping[str, str] | None = None) -> str:
    """The sentences that ask for `form`; `gist` says by key what a part holds."""
    parts = parts_of(form)
    listed = any(part.kind in ("texts", "numbers", "models") and part.may_be_empty for part in parts)
    head = "Answer with these lines and nothing else, each beginning with its label"
    none = "; write none where a list is empty" if listed else ""
    return "\n".join([f"{head}{none}:", *(line for part in parts for line in _asked(part, gist or {}))])


def opening(form: type[BaseModel], said: Mapping[str, Any] | None = None) -> str:
    """How an answer begins: the parts in `said`, which are the first ones, and the label of the next one.

    A list of models has two beginnings, and the answer chooses.
    """
    parts, said = parts_of(form), said or {}
    due = next(part for part in parts if part.key not in said)
    lines = [line for part in parts if part.key in said for line in _written(part, said[part.key])]
    if due.kind != "models":
        lines.append(f"{due.label}:" if due.kind != "texts" or due.may_be_empty else f"{due.label}:\n1.")
    return "\n".join(lines)


def render(value: BaseModel) -> str:
    """An answer that `read_lines` reads back."""
    said = value.model_dump(mode="json", by_alias=True)
    return "\n".join(line for part in parts_of(type(value)) for line in _written(part, said[part.key]))


def read_lines(text: str, form: type[BaseModel], finished: bool = True) -> Lines:
    """Read one answer; never raises. Of an answer that is not `finished`, cut off at its limit, the last part counts
    where it is text: half a number or word may be another one."""
    parts = parts_of(form)
    before, marks = split_at_labels(text, [part.label for part in _all(parts)])
    if before.strip():
        return Lines({}, "text before the first label")
    values: dict[str, Any] = {}
    place = 0
    for at, part in enumerate(parts):
        values |= (read := _Reading(marks, place, at == len(parts) - 1, finished)).take(part)
        there = place < len(marks) and marks[place][0] == part.label
        place = read.place
        if part.key not in values:
            if there and (finished or place < len(marks)):
                return Lines(values, f"{part.label!r} has no value")
            if place < len(marks):
                seen = marks[place][0]
                return Lines(values, f"the label {seen!r} stands where {part.label!r} belongs")
            break
    return Lines(values)


class _Reading:
    """Takes parts off a row of labels and texts."""

    def __init__(self, marks: Sequence[tuple[str, str]], place: int, last: bool, finished: bool) -> None:
        self.marks, self.place, self.last, self.finished = marks, place, last, finished

    def take(self, part: Part) -> dict[str, Any]:
        """{key: value}, or nothing where the part is not there or says nothing."""
        if part.kind != "models":
            return self._one(part)
        if self._due(part.label):
            none = self._body(part).strip(_MARKS).casefold() == _NONE
            self.place += none
            return {part.key: []} if none else {}
        found = []
        while self._due(part.inner[0].label):
            own: dict[str, Any] = {}
            for inner in part.inner:
                own |= self._one(inner)
            found.append(own)
        return {part.key: found} if found else {}

    def _due(self, label: str) -> bool:
        return self.place < len(self.marks) and self.marks[self.place][0] == label

    def _one(self, part: Part) -> dict[str, Any]:
        if not self._due(part.label):
            return {}
        cut = not self.finished and self.place == len(self.marks) - 1 and "\n" not in self.marks[-1][1].lstrip()
        body = self._body(part)
        self.place += 1
        empty = not _items(body) if part.kind == "texts" else not body or is_placeholder(body)
        if empty or (cut and part.kind not in ("text", "texts")):
            return {}
        return {part.key: _value(part, body)}

    def _body(self, part: Part) -> str:
        """What follows the label; of the last one only what belongs to it."""
        body = self.marks[self.place][1].strip()
        if not self.last and self.place < len(self.marks) - 1:
            return body
        if part.kind not in ("text", "texts"):
            return body.partition("\n")[0]
        first, *others = _BLANK.split(body)
        kept = [first]
        for other in others if part.kind == "texts" else []:
            if not _ITEM.match(other):
                break
            kept.append(other)
        return "\n".join(kept)


def _value(part: Part, body: str) -> Any:
    """As JSON holds it; what does not fit stays text, and the model refuses it."""
    line = " ".join(body.split())
    word = line.strip(_MARKS)
    if part.kind == "yes_no":
        return _WORDS.get(word.casefold(), line)
    if part.kind == "choice":
        return next((choice for choice in part.choices if _plain(choice) == _plain(word)), line)
    if part.kind == "number":
        return _number(word)
    if part.kind == "numbers":
        return [] if word.casefold() == _NONE else [_number(one) for one in re.split(r"[,;，、\s]+", word) if one]
    if part.kind == "texts":
        items = _items(body)
        return [] if [item.strip(_MARKS).casefold() for item in items] == [_NONE] else items
    return line


def _items(body: str) -> list[str]:
    lines = [line for line in body.splitlines() if line.strip()]
    numbered = any(_ITEM.match(line) for line in lines)
    if numbered and not _ITEM.match(lines[0]):  # said before the list, and no item of it
        return []
    items: list[str] = []
    for line in lines:
        if numbered and items and not _ITEM.match(line):
            items[-1] += f" {line.strip()}"
        else:
            items.append(_ITEM.sub("", line, count=1).strip() if numbered else line.strip())
    return [" ".join(item.split()) for item in items if item and not is_placeholder(item)]


def _number(word: str) -> int | float | str:
    word = word.strip(_MARKS)
    if not _NUMBER.fullmatch(word):
        return word
    return float(word) if "." in word else int(word)


def _plain(word: str) -> str:
    return word.strip(_MARKS).replace("_", " ").casefold()


def _asked(part: Part, gist: Mapping[str, str]) -> list[str]:
    told = gist.get(part.key)
    if part.kind == "models":
        again = f"and so on for each; {part.label}: none where there is none" if part.may_be_empty else "and so on"
        return [*(line for inner in part.inner for line in _asked(inner, gist)), f"({again})"]
    if part.kind == "texts":
        return [f"{part.label}:", f"1. <{told or 'text'}>", "2. …"]
    kinds = {"text": "text", "yes_no": "yes or no", "number": "number", "numbers": "numbers, with commas"}
    return [f"{part.label}: <{told or kinds.get(part.kind) or ' or '.join(part.choices)}>"]


def _written(part: Part, value: Any) -> list[str]:
    if part.kind in ("texts", "numbers", "models") and not value:
        return [f"{part.label}: {_NONE}"]
    if part.kind == "models":
        return [line for one in value for inner in part.inner for line in _written(inner, one[inner.key])]
    if part.kind == "texts":
        return [f"{part.label}:", *(f"{number}. {' '.join(one.split())}" for number, one in enumerate(value, start=1))]
    if part.kind == "numbers":
        return [f"{part.label}: {', '.join(map(str, value))}"]
    said = {True: "yes", False: "no"}[value] if part.kind == "yes_no" else " ".join(str(value).split())
    return [f"{part.label}: {said}"]


def _all(parts: Iterable[Part]) -> list[Part]:
    return [one for part in parts for one in (part, *_all(part.inner))]


def _part(form: type[BaseModel], name: str, field: FieldInfo) -> Part:
    key = field.alias or name
    label = field.alias or name[:1].upper() + name[1:].replace("_", " ")
    wanted = _bare(field.annotation)
    empty = not any(isinstance(one, MinLen) and one.min_length for one in field.metadata)
    if get_origin(wanted) is Literal and all(isinstance(one, str) for one in get_args(wanted)):
        return Part(key, label, "choice", get_args(wanted))
    simple: dict[Any, Kind] = {str: "text", bool: "yes_no", int: "number", float: "number"}
    if wanted in simple:
        return Part(key, label, simple[wanted])
    if get_origin(wanted) in (list, tuple):
        item = _bare(get_args(wanted)[0])
        if isinstance(item, type) and issubclass(item, BaseModel):
            return Part(key, label, "models", inner=parts_of(item), may_be_empty=empty)
        if item in (str, int, float):
            return Part(key, label, "texts" if item is str else "numbers", may_be_empty=empty)
    raise TypeError(f"{form.__name__}.{name} is {field.annotation}; labelled lines hold no such field")


def _bare(annotation: Any) -> Any:
    return _bare(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation
