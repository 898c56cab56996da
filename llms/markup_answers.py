"""Finds tables and tags in a text, as the values that JSON would give, boxed text, and the part after a draft."""

import re
from collections.abc import Callable

_ROW = re.compile(r"^[ \t]*\|(.*)\|[ \t]*$")
_RULE = re.compile(r"[ \t]*:?-+:?[ \t]*")
_TAG = re.compile(
    r"<([a-z][\w -]*?)((?:\s+\w+\s*=\s*[\"'][^\"'<>]*[\"'])*)\s*>((?:(?!<\s*/?\s*[a-z]).)*)<\s*/\s*\1\s*>",
    re.IGNORECASE | re.DOTALL,
)
_OPENED, _CLOSED = re.compile(r"<[a-z][^<>/]*>?", re.IGNORECASE), re.compile(r"<\s*/\s*[a-z][^<>]*>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*[\"']([^\"']*)[\"']")
_BOX = re.compile(r"\$*\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}\$*")
_LATEX = re.compile(r"\\(?:begin|end)\{\w+\}|\\(?:text|textbf|textit|mathrm)\s*(?=\{)")
_FINAL = re.compile(
    r"^(?=[ \t>]*(?:#|\*\*|__)|.*[:：][*_ \t]*$)\W*(?:[a-z']+,? ){0,4}?"
    r"(?:final(?:i[sz]ed)?|revised|refined|improved|updated|corrected)(?: [a-z]+){0,2}? "
    r"(?:((?:sub-?)?quer(?:y|ies)|questions?|rewrites?|versions?)|answers?|list|set|output|passages?)\b[^\w\n]*$",
    re.IGNORECASE | re.MULTILINE,
)


def find_tables(text: str) -> list[list[dict[str, str]]]:
    """The rows of each Markdown table as objects with a key for each column; and again with the header as a row, for
    tables that have none. Rows of another length than the header are left out."""
    tables: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if row := _ROW.match(line):
            tables[-1].append([cell.strip().strip('*_`"“” ') for cell in row[1].split("|")])
        elif tables[-1]:
            tables.append([])
    found = []
    for rows in tables:
        if len(rows) > 2 and all(map(_RULE.fullmatch, rows[1])):
            header, body = rows[0], [row for row in rows[2:] if len(row) == len(rows[0])]
            found.append([dict(zip(header, row, strict=True)) for row in body])
            found.append([{str(n): cell for n, cell in enumerate(row)} for row in (header, *body)])
    return found


def find_tags(text: str, names_part: Callable[[str], bool]) -> list[dict[str, str] | list[dict[str, str]]]:
    """The innermost tags of a text whose names are those of parts: an object if each has a name of its own, else a list
    of an object for each, with its attributes; [] without any, or if one is not closed."""
    tags = [
        (name, dict(_ATTRIBUTE.findall(attributes)), body.strip())
        for name, attributes, body in _TAG.findall(text)
        if names_part(name)
    ]
    names = [name.lower() for name, _, _ in tags]
    if not tags or len(_OPENED.findall(text)) != len(_CLOSED.findall(text)):
        return []
    if len(set(names)) == len(names) and not any(attributes for _, attributes, _ in tags):
        return [{name: body for name, _, body in tags}]
    return [[{**attributes, name: body} for name, attributes, body in tags]]


def boxed(text: str) -> list[str]:
    r"""The content of each \boxed{…}, without LaTeX around it."""
    return [_box_content(box) for box in _BOX.finditer(text)]


def unboxed(text: str) -> str:
    r"""`text` with the content of each \boxed{…} in its place."""
    return _BOX.sub(_box_content, text)


def _box_content(box: re.Match[str]) -> str:
    return re.sub(r"[{}]", "", _LATEX.sub("", box[1]).replace(r"\\", "\n")).strip()


def final_part(text: str) -> tuple[str, bool]:
    """What follows the last heading such as "Final queries:", "" without one; and whether it names queries."""
    headings = list(_FINAL.finditer(text))
    return (text[headings[-1].end() :].strip(), headings[-1][1] is not None) if headings else ("", False)
