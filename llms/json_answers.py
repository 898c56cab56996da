"""JSON anywhere in a text: between sentences, in code fences, with the small errors that models make (json-repair).

An object or list counts only if it is complete: of a cut answer, half a value is not read as a whole one.
"""

import json
from typing import Any

from json_repair import repair_json

_DEPTH = 32
"""Maximum nesting of brackets; deeper nesting comes from a model that repeats itself."""
_CLOSING = {"{": "}", "[": "]"}


def find_values(text: str, finished: bool = False) -> list[Any]:
    """The objects and lists of a text that stand in no other, in order.

    `finished` says that the model ended its answer by itself: then a missing last bracket is added. A list in the
    middle of a line counts only if it holds texts: [1] may be a reference.
    """
    values: list[Any] = []
    text = text.replace("\\_", "_")  # Markdown escapes underscores
    position = 0
    while (start := min((i for i in map(text.find, _CLOSING, [position] * 2) if i >= 0), default=-1)) >= 0:
        end = _end_of(text, start)
        if end is None and finished and text[start] == "{" and text.count("{", start) <= _DEPTH:
            span, position = text[start:].rstrip("` \n"), len(text)
        elif end is None:
            position = start + 1
            continue
        else:
            span, position = text[start:end], end
        reference = span[0] == "[" and not any(quote in span for quote in "\"'“") and span != text.strip(" `\n.")
        try:
            value = None if reference else json.loads(span, strict=False, object_pairs_hook=_once)
        except KeyError:
            value = None
        except ValueError:
            value = repair_json(span, return_objects=True, skip_json_loads=True)
        if isinstance(value, dict | list) and value:
            values.append(value)
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. Raises KeyError where a key is there twice: nobody can say which value is meant."""
    if len(dict(pairs)) < len(pairs):
        raise KeyError("a key twice")
    return dict(pairs)


def _end_of(text: str, start: int) -> int | None:
    """The position after the bracket that closes the one at `start`, brackets in strings aside; None without it."""
    expected: list[str] = []
    quoted = escaped = False
    for position in range(start, len(text)):
        character = text[position]
        if escaped or (quoted and character == "\\"):
            escaped = not escaped
        elif character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in _CLOSING:
            expected.append(_CLOSING[character])
            if len(expected) > _DEPTH:
                return None
        elif character == expected[-1]:
            expected.pop()
            if not expected:
                return position + 1
    return None
