"""JSON anywhere in a text: between sentences, in code fences, with the small errors that models make.

An object or list counts only if it is complete: of a cut answer, half a value is not read as a whole one. Commas,
quotes and escapes are repaired (json-repair); an object that gives one key two values is not read.
"""

import json
from collections.abc import Iterator
from typing import Any

from json_repair import repair_json

_DEPTH = 32
"""Maximum nesting of brackets; deeper nesting comes from a model that repeats itself."""
_TOO_DEEP = -1
_CLOSING = {"{": "}", "[": "]"}


def find_values(text: str, finished: bool = False) -> list[Any]:
    """The objects and lists of a text that stand in no other, in order.

    `finished` says that the model ended its answer by itself: then a missing last bracket is added.
    """
    values = []
    for start, span, complete in _spans(text):
        if (complete or finished) and not _is_reference(text, start, span):
            value = _parsed(span)
            if isinstance(value, dict | list) and value:
                values.append(value)
    return values


def _is_reference(text: str, start: int, span: str) -> bool:
    """Whether a list in the middle of a sentence is none of texts, such as [1]."""
    preceding, after = text[:start].rpartition("\n")[2], text[start + len(span) :].partition("\n")[0]
    return span.startswith("[") and not any(mark in span for mark in "\"'“") and bool((preceding + after).strip(" .`"))


def _spans(text: str) -> Iterator[tuple[int, str, bool]]:
    """(start, text, closed) of each outermost bracketed part; only the last can be unclosed."""
    position = 0
    while (start := min((i for i in (text.find(b, position) for b in _CLOSING) if i >= 0), default=-1)) >= 0:
        end = _end_of(text, start)
        if end == _TOO_DEEP:
            position = start + 1
            continue
        if end is None:
            inner = text.find("{", start + 1)
            if text[start] == "{" or inner < 0:
                yield start, text[start:].rstrip().rstrip("`").rstrip(), False
                return
            position = start + 1
            continue
        yield start, text[start:end], True
        position = end


def _end_of(text: str, start: int) -> int | None:
    """The position after the bracket that closes the one at `start`, or `_TOO_DEEP`; those in strings do not count."""
    expected: list[str] = []
    quoted = escaped = False
    for position in range(start, len(text)):
        character = text[position]
        if quoted:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                quoted = False
        elif character == '"':
            quoted = True
        elif character in _CLOSING:
            expected.append(_CLOSING[character])
            if len(expected) > _DEPTH:
                return _TOO_DEEP
        elif expected and character == expected[-1]:
            expected.pop()
            if not expected:
                return position + 1
    return None


def _parsed(span: str) -> object:
    """The value of a JSON text; None if it is invalid, or gives one key two values."""
    span = span.replace("\\_", "_")  # Markdown escapes underscores
    try:
        return json.loads(span, strict=False, object_pairs_hook=_once)
    except _TwoValuesError:
        return None
    except (ValueError, RecursionError):
        pass
    try:
        return repair_json(span, return_objects=True, skip_json_loads=True)
    except (ValueError, RecursionError):
        return None


class _TwoValuesError(Exception):
    """One key with two values; never leaves this file."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if values.get(key, value) != value:
            raise _TwoValuesError(key)
        values[key] = value
    return values
