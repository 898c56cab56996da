"""The words of texts: lower-cased, without English stopwords, stemmed (Snowball); of English those of `bm25s.tokenize`.

Other scripts keep what a word of theirs is made of: accents are composed (NFC), vowel signs stay, Arabic and Hebrew
points, which most writers leave out, go, and where no spaces stand between words, each pair of characters is one.
A distinct word is stemmed once, not once for each text or block of texts.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import chain

import Stemmer
from bm25s.stopwords import STOPWORDS_EN

_MARKS = "".join(
    chr(code)
    for code in (*range(0x300, 0xFE00), *range(0xFE10, 0x10000))  # but for variation selectors, as of emoji
    if unicodedata.category(chr(code)).startswith("M")
)
_WORD = re.compile(rf"\w[\w{_MARKS}]+")
_POINTS = re.compile("[\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+)"
)
"""Thai, Lao, Burmese, Khmer, kana, Han; also Hangul, whose particles are written to the word."""
_STOPWORDS = frozenset(STOPWORDS_EN)
_MAX_CACHED_WORDS = 500_000


def words_of(text: str) -> list[str]:
    """The lower-cased words of at least two characters, stopwords among them, not stemmed."""
    text = text.lower()
    if text.isascii():
        return _WORD.findall(text)
    text = _POINTS.sub("", unicodedata.normalize("NFC", text.replace("i\u0307", "i")))  # "İ" in lower case
    words: list[str] = _WORD.findall(text)
    return list(chain.from_iterable(map(_parts, words))) if _UNSPACED.search(text) else words


def _parts(word: str) -> list[str]:
    """The pairs of characters of what is written without spaces, and the words between."""
    parts: list[str] = []
    for number, run in enumerate(_UNSPACED.split(word)):
        if number % 2 and len(run) > 1:
            parts += [run[start : start + 2] for start in range(len(run) - 1)]
        elif number % 2 or len(run) > 1:
            parts.append(run)
    return parts


def stems(words: Sequence[str]) -> list[str | None]:
    """The stem of each word, None for a stopword."""
    stemmer = Stemmer.Stemmer("english", 0)  # one for each call, because threads must not share it
    stemmed = stemmer.stemWords(list(words))
    return [None if word in _STOPWORDS else stem for word, stem in zip(words, stemmed, strict=True)]


class Vocabulary:
    """Maps texts to the numbers of their words."""

    def __init__(self, number: Callable[[str], int]) -> None:
        """`number` gives the number of a stem, -1 for one that it does not know."""
        self._number = number
        self._numbers: dict[str, int | None] = {}

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the words of each text but stopwords, in order and with repetitions."""
        words = list(map(words_of, texts))
        distinct = set(chain.from_iterable(words))
        if len(self._numbers) > _MAX_CACHED_WORDS:
            self._numbers.clear()
        new = list(distinct.difference(self._numbers))
        for word, stem in zip(new, stems(new), strict=True):
            self._numbers[word] = None if stem is None else self._number(stem)
        return [[number for word in text if (number := self._numbers[word]) is not None] for text in words]
