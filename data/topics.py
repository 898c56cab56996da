"""Questions in the forms of TREC's topics: lines of id, tab and text; `<top>` records; XML.

The title is asked; in XML without titles the `query`, else all text.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from ..errors import DataError
from .rows import read_lines

NAMES = ("queries.tsv", "topics.tsv", "topics.txt", "topics.xml")
_MARK = re.compile(r"</?(?:top|head|num|dom|title|desc|smry|narr|con|fac|def)>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d+|#x[\da-f]+|[a-z]\w*);", re.IGNORECASE)
_ATTRIBUTES = r"""(?:\s+[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*"""
_NAMES = "a|abbr|b|big|cite|code|dfn|em|font|i|kbd|mark|q|s|samp|small|span|strong|sub|sup|tt|u|var"
_TAG = re.compile(rf"</?(?:{_NAMES}){_ATTRIBUTES}\s*/?>", re.IGNORECASE)
_BREAK = re.compile(rf"</?(?:br|p){_ATTRIBUTES}\s*/?>", re.IGNORECASE)


def without_tags(text: str) -> str:
    """The text without the tags of inline elements; `<p>` and `<br>` become spaces. Any other "<" is text."""
    return _TAG.sub("", _BREAK.sub(" ", text))


def read_topics(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield ("FILE, topic N", id, text) for each topic. Raises DataError for one without an id or a text."""
    lines = [line for _, line in read_lines(path)]
    content = "\n".join(lines)
    if path.suffix == ".xml":
        topics = _xml(path, content)
    elif re.search(r"<top>", content, re.IGNORECASE):
        topics = map(_record, re.split(r"<top>", content, flags=re.IGNORECASE)[1:])
    else:
        topics = ((identifier, text) for identifier, _, text in (line.partition("\t") for line in lines))
    for number, (identifier, text) in enumerate(topics, start=1):
        if not identifier.strip() or not text.strip():
            raise DataError(f"{path}, topic {number}: the id is {identifier!r} and the text {text!r}. Correct it.")
        yield f"{path}, topic {number}", identifier.strip(), " ".join(text.split())


def _record(record: str) -> tuple[str, str]:
    """Id and title of a `<top>` record, whose marks may be closed or not."""
    fields = {
        mark[0].strip("<>").lower(): text
        for mark, text in zip(_MARK.finditer(record), _MARK.split(record)[1:], strict=True)
        if not mark[0].startswith("</")
    }
    number = re.sub(r"^\s*number:", "", fields.get("num", ""), flags=re.IGNORECASE)
    title = re.sub(r"^\s*topic:", "", fields.get("title", ""), flags=re.IGNORECASE)
    return number, _ENTITY.sub(lambda entity: html.unescape(entity[0]), without_tags(title))


def _xml(path: Path, content: str) -> Iterator[tuple[str, str]]:
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise DataError(f"{path} is not valid XML ({error}). Correct it.") from error
    for topic in root.iter("topic"):
        identifier = topic.get("number") or topic.get("id") or topic.findtext("num") or ""
        fields = (field for name in ("title", "query") if (field := topic.find(name)) is not None)
        yield identifier, "".join(next(fields, topic).itertext())
