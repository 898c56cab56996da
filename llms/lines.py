"""Answers as labelled lines, for local models, which honour no JSON schema: `Verdict: yes`, one value a line.

A list repeats its label, one line per item (`Missing: none` if it is empty); an item of several parts is one line,
`Pieces: 1 | Jane Austen wrote Emma.`. Other lines are ignored, and the answer ends where a label that has one value
comes again: small models go on.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

_ROW = re.compile(r"[ \t>#*_-]*([^\W\d][\w ]*?(?: \d+)?)[ \t*_]*[:：][ \t*_]*(.*?)[ \t*_]*")
_PLACEHOLDER = re.compile(r"<[^<>]*>|…|\.{3}")


class Field(NamedTuple):
    """One field of a form."""

    key: str
    listed: bool
    parts: list[str]
    """The keys of an item that is a model."""
    kind: Any

    @property
    def label(self) -> str:
        return self.key if not self.key.islower() else self.key.capitalize().replace("_", " ")

    def value(self, text: str) -> str | dict[str, str]:
        """The value of a text, which pydantic converts."""
        if self.parts:
            return dict(zip(self.parts, map(str.strip, text.split("|", len(self.parts) - 1)), strict=False))
        text = text.strip('"“” ')
        return text if self.kind is str else text.strip(".").lower() if self.kind is bool else text.strip(".")


def fields_of(form: type[BaseModel]) -> Iterator[Field]:
    """The fields of a form: plain values, lists of them, and lists of models of plain values."""
    for name, info in form.model_fields.items():
        listed = get_origin(info.annotation) in (list, tuple)
        kind = get_args(info.annotation)[0] if listed else info.annotation
        parts = list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
        yield Field(info.alias or name, listed, parts, kind)


def request(form: type[BaseModel], hints: Mapping[str, str]) -> str:
    """The sentences that ask for `form`; `hints` describes fields by key."""
    rows = ["Answer with these lines and nothing else, each beginning with its label:"]
    for field in fields_of(form):
        kind = {bool: "yes or no", int: "number", float: "number"}.get(field.kind, "text")
        hint = hints.get(field.key) or " | ".join(field.parts) or " or ".join(map(str, get_args(field.kind))) or kind
        more = " (one such line for each; none if there is none)" if field.listed else ""
        rows.append(f"{field.label}: <{hint}>{more}")
    return "\n".join(rows)


def opening(form: type[BaseModel]) -> str:
    """How every answer begins."""
    return f"{next(fields_of(form)).label}:"


def render(value: BaseModel) -> str:
    """The answer for a value, which `read` reads back."""
    rows, data = list[str](), value.model_dump(mode="json", by_alias=True)
    for field in fields_of(type(value)):
        items = data[field.key] or ["none"] if field.listed else [data[field.key]]
        for item in items:
            parts = item.values() if isinstance(item, dict) else [item]
            text = " | ".join({True: "yes", False: "no"}[p] if isinstance(p, bool) else str(p) for p in parts)
            rows.append(f"{field.label}: {' '.join(text.split())}")
    return "\n".join(rows)


def read(text: str, form: type[BaseModel]) -> dict[str, Any]:
    """The values of an answer by key, for pydantic to validate."""
    fields = {field.label.casefold(): field for field in fields_of(form)}
    values: dict[str, Any] = {}
    for row in text.splitlines():
        match = _ROW.fullmatch(row)
        field = fields.get(match[1].casefold()) if match else None
        if match is None or field is None or not match[2] or _PLACEHOLDER.fullmatch(match[2]):
            continue
        if field.listed and match[2].lower().strip(".") == "none":
            values.setdefault(field.key, [])
        elif field.listed:
            values.setdefault(field.key, []).append(field.value(match[2]))
        elif field.key in values:
            break
        else:
            values[field.key] = field.value(match[2])
    return values
