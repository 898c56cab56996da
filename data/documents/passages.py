"""Cuts documents into passages: at headings first, then at paragraphs, sentences and words.

A passage has at most a given number of words, a character of a script without spaces counting as one, and begins with
the last sentences of the passage before it in its section. Sections of a few words are joined with the next one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from ..knowledge_bases import WORD, chunks_of
from ..types import Document
from .formats import SourceDocument
from .markdown import SEPARATOR, HeadedText

WORDS, OVERLAP = 200, 30
"""The packaged limits: words of a passage, and those of them that repeat the end of the one before."""
_SHORT = 4
"""A section of fewer than 1 / `_SHORT` of a passage's words is joined with its neighbour."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")


def passages_of(document: SourceDocument, words: int = WORDS, overlap: int = OVERLAP) -> list[Document]:
    """The passages of a document in their order, with the ids `ID#1`, `ID#2`, …

    The title of a passage is that of the document and the headings above it. `overlap` must be less than
    half of `words`.
    """
    assert 0 <= overlap < words / 2, "the caller checks the settings"
    titled = [
        (SEPARATOR.join(filter(None, (document.title, section.heading))), text)
        for section in _joined(document.sections, words)
        for text in _packed(section.text, words, overlap)
    ]
    return [Document(f"{document.id}#{number}", title, text) for number, (title, text) in enumerate(titled, start=1)]


def word_count(text: str) -> int:
    """The number of words; a character of a script without spaces is one."""
    return sum(1 for _ in WORD.finditer(text))


def _joined(sections: Iterable[HeadedText], words: int) -> list[HeadedText]:
    joined: list[HeadedText] = []
    for section in sections:
        counts = [word_count(part.text) for part in (*joined[-1:], section)]
        if joined and min(counts) < words // _SHORT and sum(counts) <= words:
            previous = joined.pop()
            inner = section.heading.rpartition(SEPARATOR)[2]
            text = "\n\n".join(filter(None, (previous.text.strip(), inner, section.text.strip())))
            joined.append(HeadedText(previous.heading, text))
        else:
            joined.append(section)
    return joined


def _packed(text: str, words: int, overlap: int) -> Iterator[str]:
    """The text in passages of at most `words` words, as few as its paragraphs allow."""
    passage, size, fresh = "", 0, False
    for separator, unit in _units(text, words - overlap):
        count = word_count(unit)
        if fresh and size + count > words:
            yield passage
            passage = _tail(passage, overlap)
            size, separator = word_count(passage), " "
        passage, size, fresh = f"{passage}{separator if passage else ''}{unit}", size + count, True
    if fresh:
        yield passage


def _units(text: str, longest: int) -> Iterator[tuple[str, str]]:
    """(what separates it from the one before, text) of the pieces that are not cut any further."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        separator = "\n\n"
        for sentence in [paragraph] if word_count(paragraph) <= longest else _sentences(paragraph):
            for part in chunks_of(sentence, longest + 1):
                if part.strip():
                    yield separator, part.strip()
                    separator = " "


def _tail(text: str, overlap: int) -> str:
    """The last sentences of a text that have at most `overlap` words together; the last words if none is that short."""
    selected: list[str] = []
    for sentence in reversed(_sentences(text)):
        if word_count(" ".join([sentence, *selected])) > overlap:
            break
        selected.insert(0, sentence)
    spans = [match.start() for match in WORD.finditer(text)]
    return " ".join(selected) if selected or not overlap else text[spans[-overlap] :]


def _sentences(text: str) -> Sequence[str]:
    return [sentence for sentence in (part.strip() for part in _SENTENCE.split(text)) if sentence]
