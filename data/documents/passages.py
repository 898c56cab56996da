"""Cuts documents into passages: at headings first, then at paragraphs, sentences and words.

A passage has at most a given number of words, a character of a script without spaces counting as one, and begins with
the last sentences of the passage before it in its section. Sections of a few words are joined with their neighbours,
under the headings that they share; the other headings stand in the text.
"""

from collections.abc import Sequence
from itertools import takewhile

from ...sources import optional_packages
from ..knowledge_bases import WORD
from ..types import Document
from .readers import SourceDocument, TextSection

WORDS, OVERLAP = 200, 30
"""The packaged limits: words of a passage, and those of them that may repeat the end of the one before."""
SEPARATOR = " > "
"""Joins the headings above a text."""
_SHORT = 4
"""A section of fewer than 1 / `_SHORT` of a passage's words is joined with its neighbour."""


def passages_of(document: SourceDocument, words: int = WORDS, overlap: int = OVERLAP) -> list[Document]:
    """The passages of a document in their order, with the ids `ID#1`, `ID#2`, …

    The title of a passage is that of the document and the headings above it. `overlap` must be less than `words`.
    """
    with optional_packages("documents"):
        from semantic_text_splitter import TextSplitter
    splitter = TextSplitter.from_callback(word_count, words, overlap=overlap)
    titled = [
        (SEPARATOR.join(filter(None, (document.title, *section.headings))), text)
        for section in _joined(document.sections, words)
        for text in splitter.chunks(section.text)
    ]
    return [Document(f"{document.id}#{number}", title, text) for number, (title, text) in enumerate(titled, start=1)]


def word_count(text: str) -> int:
    """The number of words; a character of a script without spaces is one."""
    return sum(1 for _ in WORD.finditer(text))


def _joined(sections: Sequence[TextSection], words: int) -> list[TextSection]:
    joined: list[list[TextSection]] = []
    for section in sections:
        previous = _together(joined[-1]) if joined else TextSection((), "")
        smaller = min(word_count(previous.text), word_count(section.text))
        if joined and smaller < words // _SHORT and word_count(_together([*joined[-1], section]).text) <= words:
            joined[-1].append(section)
        else:
            joined.append([section])
    return list(map(_together, joined))


def _together(sections: Sequence[TextSection]) -> TextSection:
    """Several sections as one, under the headings that they share."""
    levels = zip(*(section.headings for section in sections), strict=False)
    shared = tuple(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))
    parts = [
        part for section in sections for part in (SEPARATOR.join(section.headings[len(shared) :]), section.text) if part
    ]
    return TextSection(shared, "\n\n".join(parts) or "".join(shared[-1:]))
