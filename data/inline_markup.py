"""Markup within a text, as SGML topics and headings of web pages have it."""

import re

_ATTRIBUTE = r"""\s+[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+)"""
_NAMES = "a|abbr|b|big|cite|code|dfn|em|font|i|kbd|mark|q|s|samp|small|span|strong|sub|sup|tt|u|var"
_TAG = re.compile(rf"</?(?:{_NAMES})(?:{_ATTRIBUTE})*\s*/?>", re.IGNORECASE)
_BREAK = re.compile(rf"</?(?:br|p)(?:{_ATTRIBUTE})*\s*/?>", re.IGNORECASE)


def without_tags(text: str) -> str:
    """The text without the tags of inline elements; `<p>` and `<br>` become spaces. Any other "<" is text."""
    return _TAG.sub("", _BREAK.sub(" ", text))
