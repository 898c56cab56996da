"""Answers as labelled lines, for local models that honour no schema: `Verdict: yes`, one field after another.

A field begins at the start of a line with its label, the field's key in words. A list has a numbered line for each
item, or `none`; numbers stand on one line, with commas; a list of models repeats the lines of one. The answer ends with
its last field, at a blank line; what models write before and after it is ignored.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import MinLen
from pydantic import BaseModel

from .prose import unquoted

_ITEM = re.compile(r"[ \t]*(?:\d+[.)](?!\d)|[-*•](?=\s))[ \t]*")
_BARE = re.compile(r"[ \t]*(?:\d+[.)]?|[-*•])[ \t]*")
"""The mark of an item without a text."""
_PLACEHOLDER = re.compile(r"<[^<>]*>|…|\.{3}")
_NOTHING = re.compile(r"\W*(?:none|no|nothing|n/?a|empty)\W*", re.IGNORECASE)


class LineField:
    """One field of a form."""

    def __init__(self, form: type[BaseModel], name: str) -> None:
        """Raises TypeError for a field that lines cannot express."""
        info = form.model_fields[name]
        self.key = info.alias or name
        self.label = info.alias or name[:1].upper() + name[1:].replace("_", " ")
        kind = _bare(info.annotation)
        self.listed = get_origin(kind) in (list, tuple)
        self.may_be_empty = self.listed and not any(isinstance(rule, MinLen) for rule in info.metadata)
        self.kind = _bare(get_args(kind)[0]) if self.listed else kind
        self.choices: Sequence[str] = get_args(self.kind) if get_origin(self.kind) is Literal else ()
        self.inner = fields_of(self.kind) if isinstance(self.kind, type) and issubclass(self.kind, BaseModel) else []
        if not (self.choices or self.inner or self.kind in (str, bool, int, float)):
            raise TypeError(f"{form.__name__}.{name} is {info.annotation}; labelled lines hold no such field")

    def request(self, hints: Mapping[str, str]) -> Iterator[str]:
        """The lines that ask for it."""
        hint = hints.get(self.key)
        if self.inner:
            yield from (line for field in self.inner for line in field.request(hints))
            none = f" for each; {self.label}: none where there is none" if self.may_be_empty else ""
            yield f"(and so on{none})"
        elif self.listed and self.kind is str:
            yield from (f"{self.label}:", f"1. <{hint or 'text'}>", "2. …")
        else:
            kinds = {str: "text", bool: "yes or no", int: "numbers, with commas" if self.listed else "number"}
            yield f"{self.label}: <{hint or ' or '.join(self.choices) or kinds.get(self.kind, 'number')}>"

    def render(self, value: Any) -> Iterator[str]:
        """The lines of a value."""
        if self.listed and not value:
            yield f"{self.label}: none"
        elif self.inner:
            yield from (line for item in value for field in self.inner for line in field.render(item[field.key]))
        elif self.listed and self.kind is str:
            yield f"{self.label}:"
            yield from (f"{number}. {' '.join(item.split())}" for number, item in enumerate(value, start=1))
        elif self.listed:
            yield f"{self.label}: {', '.join(map(str, value))}"
        else:
            text = ("no", "yes")[value] if isinstance(value, bool) else " ".join(str(value).split())
            yield f"{self.label}: {text}"

    def read(self, text: str) -> object:
        """The value of a text, which pydantic validates; None for a copy of the request."""
        if self.listed:
            if _NOTHING.fullmatch(text.strip()):
                return []
            if self.kind is str:
                return items(text) or None
            return [number.strip("[]") for number in re.split(r"[,;\s]+", text.strip(" \t."))]
        line = " ".join(text.split())
        if _PLACEHOLDER.fullmatch(line) or not line:
            return None
        return unquoted(line) if self.kind is str else self.fit(line.strip(" \t.!*_\"'()[]<>"))

    def fit(self, word: str) -> str:
        """The choice that a word names, whatever its case and spelling."""
        return next((choice for choice in self.choices if plain(choice) == plain(word)), word)


def fields_of(form: type[BaseModel]) -> list[LineField]:
    """The fields of a form. Raises TypeError for a field that lines cannot express."""
    return [LineField(form, name) for name in form.model_fields]


def labels_of(form: type[BaseModel]) -> list[str]:
    """The labels of an answer, in their order; a list of models has those of one model."""
    return [leaf.label for field in fields_of(form) for leaf in (field.inner or [field])]


def request(form: type[BaseModel], field_hints: Mapping[str, str]) -> str:
    """The sentences that ask for `form`; `field_hints` describes fields by key."""
    fields = fields_of(form)
    none = "; write none where a list is empty" if any(field.may_be_empty for field in fields) else ""
    head = f"Answer with these lines and nothing else, each beginning with its label{none}:"
    return "\n".join([head, *(line for field in fields for line in field.request(field_hints))])


def opening(form: type[BaseModel], values: Mapping[str, object]) -> str:
    """The start of an answer: the lines of `values`, the first fields, and the label of the next one.

    A list of models can begin in two ways, so its label is left to the model.
    """
    fields = fields_of(form)
    following = next(field for field in fields if field.key not in values)
    lines = [line for field in fields if field.key in values for line in field.render(values[field.key])]
    if not following.inner:
        numbered = following.listed and following.kind is str and not following.may_be_empty
        lines.append(f"{following.label}:\n1." if numbered else f"{following.label}:")
    return "\n".join(lines)


def render(value: BaseModel) -> str:
    """The answer for a value, which `read_lines` reads back."""
    values = value.model_dump(mode="json", by_alias=True)
    return "\n".join(line for field in fields_of(type(value)) for line in field.render(values[field.key]))


def label_pattern(label: str, strict: bool = False) -> re.Pattern[str]:
    """Matches a label at the start of a line, with the markup that chat models put around it; unless `strict`, also
    with a number before it and words in parentheses after it, or alone on its line."""
    words = ("[ _]" if strict else "[ _]?").join(map(re.escape, re.split("[ _]", label)))
    number, end = ("", r"[:：]") if strict else (r"(?:\d{1,2}[.)][ \t*_]*)?", r"(?:\([^()\n]*\)[ \t*_]*)?(?:[:：]|$)")
    return re.compile(rf"^[ \t>#*_-]*{number}{words}[ \t*_]*{end}[ \t*_]*", re.IGNORECASE | re.MULTILINE)


def split_at_labels(text: str, labels: Iterable[str], strict: bool = False) -> list[tuple[str, str]]:
    """Each label and the text up to the next one."""
    marks = sorted(
        (mark.start(), mark.end(), label) for label in labels for mark in label_pattern(label, strict).finditer(text)
    )
    ends = [*(start for start, _, _ in marks), len(text)][1:]
    return [(label, text[start:end]) for (_, start, label), end in zip(marks, ends, strict=True)]


def read_lines(text: str, form: type[BaseModel], finished: bool = True) -> dict[str, object]:
    """The values of an answer by key, for pydantic to validate. A label that is there twice before the end has no
    value.

    Of an answer that was cut off at its limit, the last field counts only if it is text: half a number or word may be
    another one; of a list, the item that was cut is dropped, unless it is the only one.
    """
    fields = fields_of(form)
    leaves = {leaf.label: (field, leaf) for field in fields for leaf in (field, *field.inner)}
    marks = split_at_labels(text, list(leaves))
    if not marks and len(fields) == 1 and _ITEM.match(text) and fields[0].listed:
        marks = [(fields[0].label, text)]
    values: dict[str, Any] = {}
    for position, (label, body) in enumerate(marks):
        field, leaf = leaves[label]
        last = position == len(marks) - 1
        value = leaf.read(_first_block(body, leaf) if last or leaf is fields[-1] or leaf.kind is not str else body)
        if last and not finished and "\n" not in body.strip() and leaf.kind is not str:
            continue
        cut_line = body.rstrip().rpartition("\n")[2]
        if last and not finished and isinstance(value, list) and len(value) > 1 and not _BARE.fullmatch(cut_line):
            value = value[:-1] if value[-1].endswith(_ITEM.sub("", cut_line).strip()) else value
        if leaf is not field:
            entries = values.setdefault(field.key, [{}])
            if leaf.key in entries[-1]:
                entries.append({})
            entries[-1][leaf.key] = value
        elif leaf.key not in values:
            values[leaf.key] = value
        elif len(values) == len(fields):  # small models go on with lines that they wrote
            break
        else:
            values[leaf.key] = None
    return values


def fitted(value: object, form: type[BaseModel]) -> object:
    """A JSON value with the keys of `form`, in whatever case; what does not fit is left for the model to reject."""
    fields = fields_of(form)
    if (
        isinstance(value, list)
        and len(fields) == 1
        and not any(isinstance(item, dict) and fields[0].key in item for item in value)
    ):
        value = {fields[0].key: value}
    if not isinstance(value, dict):
        return value
    by_name = {plain(name): field for field in fields for name in (field.key, field.label)}
    return {field.key: _fit(item, field) for key, item in value.items() if (field := by_name.get(plain(str(key))))}


def _fit(value: Any, field: LineField) -> object:
    if isinstance(value, str):
        return field.read(value) if value.strip() else [] if field.listed else value
    if field.listed:
        members = value if isinstance(value, list) else [] if value is None else [value]
        if isinstance(value, dict) and not field.inner:
            members = list(value.values())
        return [_fit_member(item, field) for item in members]
    return str(value) if field.kind is str and isinstance(value, int | float) else value


def _fit_member(item: Any, field: LineField) -> object:
    if field.inner:
        return fitted(item, field.kind)
    if isinstance(item, dict) and len(item) == 1:
        (item,) = item.values()
    if field.kind is str:
        return None if is_placeholder(item) else str(item) if isinstance(item, int | float) else item
    numbers = re.findall(r"\d+(?:\.\d+)?", item) if isinstance(item, str) else []
    return numbers[0] if len(numbers) == 1 else item


def items(text: str) -> list[str]:
    """The items of a list, one a line, numbered or not; [] where text stands before the first number."""
    lines = [line for line in text.splitlines() if line.strip() and not _BARE.fullmatch(line)]
    numbered = any(map(_ITEM.match, lines))
    if numbered and not _ITEM.match(lines[0]):
        return []
    found: list[str] = []
    for line in lines:
        if numbered and not _ITEM.match(line):
            found[-1] += f" {line}"
        else:
            found.append(_ITEM.sub("", line, count=1))
    return [" ".join(item.split()) for item in found if not _PLACEHOLDER.fullmatch(item.strip())]


def is_placeholder(text: object) -> bool:
    """Whether a value was copied from the request (`<text>`) instead of filled in."""
    return isinstance(text, str) and _PLACEHOLDER.fullmatch(text.strip()) is not None


def plain(name: str) -> str:
    """A name without case, spaces and marks; a sign at its end is a word."""
    words = re.sub(r"[-−⁻]$", "minus", re.sub(r"[+⁺]$", "plus", name.strip()))
    return "".join(filter(str.isalnum, words)).casefold()


def _first_block(body: str, field: LineField) -> str:
    """The part of the last body that belongs to it: its first line, or all up to a blank one."""
    if field.listed and field.kind is str:
        return re.split(r"\n[ \t]*\n(?![ \t]*\d)", body.strip())[0]
    # a small model goes on with the options of the question
    ends = r"\n[ \t]*\n|\n(?=[A-D][.)] )" if field.kind is str else r"\n"
    return re.split(ends, body.strip())[0]


def _bare(annotation: Any) -> Any:
    return _bare(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation
