"""The words of English texts: lower-cased, without stopwords, stemmed (Snowball), as in `bm25s.tokenize`.

A distinct word is stemmed once, not once for each text or block of texts.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain

import Stemmer
from bm25s.stopwords import STOPWORDS_EN

_WORD = re.compile(r"\w\w+")
_STOPWORDS = frozenset(STOPWORDS_EN)
_MAX_CACHED_WORDS = 500_000


def words_of(text: str) -> list[str]:
    """The lower-cased words of at least two characters, stopwords among them, not stemmed."""
    return _WORD.findall(text.lower())


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
