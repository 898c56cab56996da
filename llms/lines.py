"""Answers as labelled lines, for models that cannot keep to JSON: `Verdict: yes`, one part after another.

The form is that of a pydantic model. Every part begins at the start of a line with its label, which is the field's key
in words; the parts are in the order of the fields:

    text, number, choice   `Label: value`
    yes or no              `Label: yes`
    list of texts          `Label:` and a numbered line for each, or `Label: none`
    list of numbers        `Label: 1, 3`, or `Label: none`
    list of models         the lines of the first, the lines of the second, …; or `Label: none`

Values need no quotes and no escapes; a colon in them is text, and so is a label in the middle of a line. The answer
ends with its last part: after the line of a word or number, else at a blank line or a label. Text before the first
part and after the last one, which models often add, is ignored. Everything else is an error: a part that is missing,
empty, out of order or a copy of the request (`<text>`), and text before the first number of a list.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .prose import is_nothing, unquoted

Kind = Literal["text", "yes_no", "choice", "number", "texts", "numbers", "models"]

_TRUE = ("yes", "true", "y", "1", "ja", "oui", "sí", "si", "sì", "sim", "да", "是", "是的", "はい", "예", "네")
_FALSE = ("no", "false", "n", "0", "nein", "non", "não", "нет", "否", "不是", "いいえ", "아니오", "아니요")
_WORDS = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)
_NONE = "none"
_MARKS = " \t.!*_\"'()[]<>"
"""Characters that may surround a single word."""
_ANOTHER_TEXT = re.compile(r"\n(?=[ \t]*(?:(?:[A-D][.)]|E\))[ \t]|[^\n:：]{1,40}[:：][ \t]*(?:\n|\Z)))")
"""Before a line that belongs to no text: an option of the question that small models copy, or a heading. "E. coli"
is none."""
_ITEM = re.compile(r"[ \t]*(?:\d+[.)、](?!\d)|[-*•](?=\s))[ \t]*")
"""The start of a list item; "2.5 mg" and "-5" start none."""
_BARE_MARK = re.compile(r"[ \t]*(?:\d+[.)、]?|[-*•])[ \t]*")
"""The mark of an item whose text was cut off."""
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?")
_PLACEHOLDER = re.compile(r"<[^<>]*>|…|\.{3}")
_BLANK = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form."""

    key: str
    """The field name that the model takes."""
    label: str
    kind: Kind
    choices: tuple[str, ...] = ()
    """choice: the allowed words."""
    inner: tuple["FormPart", ...] = ()
    """models: the parts of each model."""
    may_be_empty: bool = True
    """Whether a list may be empty."""


@dataclass(frozen=True, slots=True)
class ParsedLines:
    """The result of parsing one answer."""

    values: Mapping[str, object]
    """By key, as JSON values, the parts that are present."""
    failure: str = ""
    """What is wrong with the order of the parts; the pydantic model rejects values that do not fit."""


def parts_of(form: type[BaseModel]) -> tuple[FormPart, ...]:
    """The parts of a form. Raises TypeError for a field that labelled lines cannot express."""
    return tuple(_part(form, name, field) for name, field in form.model_fields.items())


def labels_of(form: type[BaseModel]) -> list[str]:
    """The labels of an answer, in their order; a list of models has those of one model."""
    return [leaf.label for part in parts_of(form) for leaf in (part.inner or (part,))]


def label_pattern(label: str, numbered: bool = False) -> re.Pattern[str]:
    """Matches a label at the start of a line, with the markup that chat models put around it; `numbered` allows a
    number before it too, and words in parentheses after it."""
    words = "[ _]".join(map(re.escape, re.split("[ _]", label)))
    number, aside = (r"(?:\d{1,2}[.)][ \t*_]*)?", r"(?:\([^()\n]{0,60}\)[ \t*_]*)?") if numbered else ("", "")
    return re.compile(rf"^[ \t>*#_-]*{number}{words}[ \t*_]*{aside}[:：][ \t*_]*", re.IGNORECASE | re.MULTILINE)


def split_at_labels(text: str, labels: Iterable[str], numbered: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """The text before the first label, and each label with the text up to the next one."""
    marks = sorted(
        (mark.start(), mark.end(), label) for label in labels for mark in label_pattern(label, numbered).finditer(text)
    )
    if not marks:
        return text, []
    ends = [start for start, _, _ in marks[1:]] + [len(text)]
    return text[: marks[0][0]], [
        (label, text[body_start:end]) for (_, body_start, label), end in zip(marks, ends, strict=True)
    ]


def is_placeholder(text: str) -> bool:
    """Whether a part was copied from the request (`<text>`) instead of filled in."""
    return _PLACEHOLDER.fullmatch(text.strip()) is not None


def request(form: type[BaseModel], field_hints: Mapping[str, str] | None = None) -> str:
    """The sentences that ask for `form`; `field_hints` describes parts by key."""
    parts = parts_of(form)
    listed = any(part.kind in ("texts", "numbers", "models") and part.may_be_empty for part in parts)
    head = "Answer with these lines and nothing else, each beginning with its label"
    none = "; write none where a list is empty" if listed else ""
    return "\n".join([f"{head}{none}:", *(line for part in parts for line in _request_lines(part, field_hints or {}))])


def opening(form: type[BaseModel], values: Mapping[str, object] | None = None) -> str:
    """The start of an answer: the lines of `values`, which must be the first parts, and the label of the next part.

    A list of models can begin in two ways, so its label is left to the model.
    """
    parts, values = parts_of(form), values or {}
    next_part = next(part for part in parts if part.key not in values)
    lines = [line for part in parts if part.key in values for line in _render_lines(part, values[part.key])]
    if next_part.kind != "models":
        lines.append(
            f"{next_part.label}:" if next_part.kind != "texts" or next_part.may_be_empty else f"{next_part.label}:\n1."
        )
    return "\n".join(lines)


def render(value: BaseModel) -> str:
    """The answer for a value, which `read_lines` reads back."""
    values = value.model_dump(mode="json", by_alias=True)
    return "\n".join(line for part in parts_of(type(value)) for line in _render_lines(part, values[part.key]))


def read_lines(text: str, form: type[BaseModel], finished: bool = True) -> ParsedLines:
    """Parse one answer; never raises. If the answer is not `finished` but cut off at its limit, the last part counts
    only if it is text: half a number or word may be another one. Of a list, the item that was cut is dropped, unless it
    is the only one."""
    parts = parts_of(form)
    _, marks = split_at_labels(text, [part.label for part in _flatten(parts)], numbered=True)
    if not marks and len(parts) == 1 and parts[0].kind == "texts" and (items := _only_list(text)):
        return ParsedLines({parts[0].key: items if finished else _without_cut_item(items, text)})
    values: dict[str, object] = {}
    position = 0
    for index, part in enumerate(parts):
        values |= (reader := _PartReader(marks, position, index == len(parts) - 1, finished)).take(part)
        present = position < len(marks) and marks[position][0] == part.label
        position = reader.position
        if part.key not in values:
            if present and (finished or position < len(marks)):
                return ParsedLines(values, f"{part.label!r} has no value")
            if position < len(marks):
                label = marks[position][0]
                return ParsedLines(values, f"the label {label!r} stands where {part.label!r} belongs")
            break
    return ParsedLines(values)


def _only_list(text: str) -> list[str]:
    """The items of a numbered list that is all of an answer, but for a line that announces it; [] for another text."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if lines and not _ITEM.match(lines[0]) and lines[0].rstrip("*_ ").endswith((":", "：")):
        lines = lines[1:]
    return (
        _items("\n".join(lines))
        if lines and all(re.match(r"[ \t]*\d", line) and _ITEM.match(line) for line in lines)
        else []
    )


def fitted(value: object, form: type[BaseModel]) -> object:
    """A JSON value with the keys and values of `form`: keys in any case and spelling, words for true and false, one
    text instead of a list of one, numbers as text. What does not fit is left for the model to reject.

    A list or a text alone stands for the only part of a form that has one.
    """
    try:
        parts = parts_of(form)
    except TypeError:
        return value
    if isinstance(value, list) and len(parts) == 1 and not any(_is_of(member, parts) for member in value):
        value = {parts[0].key: value}
    return _fitted_parts(value, parts) if isinstance(value, dict) else value


def _fitted_parts(value: Mapping[str, object], parts: Sequence[FormPart]) -> dict[str, object]:
    keys = {_plain_key(name): part for part in parts for name in (part.key, part.label)}
    return {
        part.key: _fitted_value(member, part)
        for key, member in value.items()
        if (part := keys.get(_plain_key(key))) is not None
    }


def _fitted_value(value: object, part: FormPart) -> object:
    if isinstance(value, str) and is_placeholder(value):
        return None
    if part.kind == "models":
        entries = value if isinstance(value, list) else [value] if isinstance(value, dict) else []
        return [_fitted_parts(entry, part.inner) if isinstance(entry, dict) else entry for entry in entries]
    if part.kind in ("texts", "numbers"):
        if value is None:
            return []
        members = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
        if members is None:
            return _value(part, str(value)) if str(value).strip() else []
        return [_fitted_member(member, part) for member in members]
    if part.kind == "text":
        if isinstance(value, list) and value and all(isinstance(member, str) for member in value):
            return " ".join(value)
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    return _value(part, value) if isinstance(value, str) else value


def _fitted_member(value: object, part: FormPart) -> object:
    if isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    if part.kind == "numbers" and isinstance(value, str):
        numbers = re.findall(r"(?<!\d)\d{1,15}(?!\d)", value)
        return int(numbers[0]) if len(numbers) == 1 else value
    if part.kind == "texts" and isinstance(value, str) and is_placeholder(value):
        return None
    return str(value) if part.kind == "texts" and isinstance(value, int | float) else value


def _is_of(value: object, parts: Sequence[FormPart]) -> bool:
    return (
        isinstance(value, dict)
        and {_plain_key(key) for key in value} & {_plain_key(part.key) for part in parts} != set()
    )


def _plain_key(key: object) -> str:
    words = re.sub(r"[-−⁻]$", "minus", re.sub(r"[+⁺]$", "plus", str(key).strip()))
    return "".join(filter(str.isalnum, words)).casefold()


class _PartReader:
    """Takes parts off a sequence of labels and texts."""

    def __init__(self, marks: Sequence[tuple[str, str]], position: int, last: bool, finished: bool) -> None:
        self.marks, self.position, self.last, self.finished = marks, position, last, finished

    def take(self, part: FormPart) -> dict[str, object]:
        """{key: value}, or nothing if the part is missing or empty."""
        if part.kind != "models":
            return self._take_one(part)
        if self._is_next(part.label):
            none = _is_none(self._body(part))
            self.position += none
            return {part.key: []} if none else {}
        entries = []
        while self._is_next(part.inner[0].label):
            entry: dict[str, object] = {}
            for inner in part.inner:
                entry |= self._take_one(inner)
            entries.append(entry)
        return {part.key: entries} if entries else {}

    def _is_next(self, label: str) -> bool:
        return self.position < len(self.marks) and self.marks[self.position][0] == label

    def _take_one(self, part: FormPart) -> dict[str, object]:
        if not self._is_next(part.label):
            return {}
        cut = not self.finished and self.position == len(self.marks) - 1 and "\n" not in self.marks[-1][1].lstrip()
        body = self._body(part)
        items = _items(body) if part.kind == "texts" else []
        complete = _without_cut_item(items, body) if items and self._cut_inside(body) else items
        self.position += 1
        if complete != items:
            return {part.key: complete}
        empty = not items if part.kind == "texts" else not body or is_placeholder(body)
        if empty or (cut and part.kind not in ("text", "texts")):
            return {}
        return {part.key: _value(part, body)}

    def _cut_inside(self, body: str) -> bool:
        """Whether the answer was cut off in the last line of this text, which is that of the last label."""
        last = self.position == len(self.marks) - 1
        return last and not self.finished and self.marks[-1][1].rstrip().endswith(_last_line(body))

    def _body(self, part: FormPart) -> str:
        """The text after the label; for the last label, only the text that belongs to it."""
        body = self.marks[self.position][1].strip()
        if not self.last and self.position < len(self.marks) - 1:
            return body
        if part.kind not in ("text", "texts"):
            return body.partition("\n")[0]
        first, *following = _BLANK.split(body)
        if part.kind == "text":
            return _ANOTHER_TEXT.split(first, maxsplit=1)[0]
        selected = [first]
        for paragraph in following:
            if not _ITEM.match(paragraph):
                break
            selected.append(paragraph)
        return "\n".join(selected)


def _value(part: FormPart, body: str) -> object:
    """As a JSON value; text that does not fit stays text, and the pydantic model rejects it."""
    line = " ".join(body.split())
    word = line.strip(_MARKS)
    if part.kind == "yes_no":
        return _WORDS.get(word.casefold(), line)
    if part.kind == "choice":
        return next((choice for choice in part.choices if _plain(choice) == _plain(word)), line)
    if part.kind == "number":
        return _number(word)
    if part.kind == "numbers":
        return [] if _is_none(word) else [_number(n) for n in re.split(r"[,;，、\s]+", word) if n]
    if part.kind == "texts":
        items = _items(body)
        return [] if len(items) == 1 and _is_none(items[0]) else items
    return unquoted(line) if part.kind == "text" else line


def _is_none(text: str) -> bool:
    word = text.strip(_MARKS)
    return word.casefold() == "no" or is_nothing(word)


def _last_line(text: str) -> str:
    return text.rstrip()[text.rstrip().rfind("\n") + 1 :]


def _without_cut_item(items: list[str], body: str) -> list[str]:
    """The items of a text that was cut off in its last line: without the last one, if that line has a word of it."""
    last = _last_line(body)
    if _BARE_MARK.fullmatch(last):
        return _items(body.rstrip().removesuffix(last))
    return items[:-1] if len(items) > 1 and _items(last) else items


def _items(body: str) -> list[str]:
    lines = [line for line in body.splitlines() if line.strip()]
    numbered = any(_ITEM.match(line) for line in lines)
    if numbered and not _ITEM.match(lines[0]):  # text before the list, not an item of it
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
    return re.sub(r"[_-]", " ", word.strip(_MARKS)).casefold()


def _request_lines(part: FormPart, field_hints: Mapping[str, str]) -> list[str]:
    description = field_hints.get(part.key)
    if part.kind == "models":
        repetition = f"and so on for each; {part.label}: none where there is none" if part.may_be_empty else "and so on"
        return [*(line for inner in part.inner for line in _request_lines(inner, field_hints)), f"({repetition})"]
    if part.kind == "texts":
        return [f"{part.label}:", f"1. <{description or 'text'}>", "2. …"]
    kinds = {"text": "text", "yes_no": "yes or no", "number": "number", "numbers": "numbers, with commas"}
    return [f"{part.label}: <{description or kinds.get(part.kind) or ' or '.join(part.choices)}>"]


def _render_lines(part: FormPart, value: Any) -> list[str]:
    if part.kind in ("texts", "numbers", "models") and not value:
        return [f"{part.label}: {_NONE}"]
    if part.kind == "models":
        return [line for item in value for inner in part.inner for line in _render_lines(inner, item[inner.key])]
    if part.kind == "texts":
        return [f"{part.label}:", *(f"{i}. {' '.join(item.split())}" for i, item in enumerate(value, start=1))]
    if part.kind == "numbers":
        return [f"{part.label}: {', '.join(map(str, value))}"]
    text = {True: "yes", False: "no"}[value] if part.kind == "yes_no" else " ".join(str(value).split())
    return [f"{part.label}: {text}"]


def _flatten(parts: Iterable[FormPart]) -> list[FormPart]:
    return [nested for part in parts for nested in (part, *_flatten(part.inner))]


def _part(form: type[BaseModel], name: str, field: FieldInfo) -> FormPart:
    key = field.alias or name
    label = field.alias or name[:1].upper() + name[1:].replace("_", " ")
    annotation = _bare(field.annotation)
    empty = not any(isinstance(constraint, MinLen) and constraint.min_length for constraint in field.metadata)
    if get_origin(annotation) is Literal and all(isinstance(choice, str) for choice in get_args(annotation)):
        return FormPart(key, label, "choice", get_args(annotation))
    simple: dict[object, Kind] = {str: "text", bool: "yes_no", int: "number", float: "number"}
    if annotation in simple:
        return FormPart(key, label, simple[annotation])
    if get_origin(annotation) in (list, tuple):
        item = _bare(get_args(annotation)[0])
        if isinstance(item, type) and issubclass(item, BaseModel):
            return FormPart(key, label, "models", inner=parts_of(item), may_be_empty=empty)
        if item in (str, int, float):
            return FormPart(key, label, "texts" if item is str else "numbers", may_be_empty=empty)
    raise TypeError(f"{form.__name__}.{name} is {field.annotation}; labelled lines hold no such field")


def _bare(annotation: object) -> object:
    return _bare(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation
