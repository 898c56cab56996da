"""The words of texts: lower-cased, without the stop words of a language, stemmed (Snowball).

Of English text they are those of `bm25s.tokenize`. Every script keeps what a word of it is made of: accents are
composed (NFC), vowel signs stay, Arabic and Hebrew points, which most writers leave out, go, and where no spaces stand
between words, each pair of characters is one.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise

import Stemmer
from bm25s import stopwords

from ...errors import ConfigError

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
_MAX_CACHED_WORDS = 500_000
_ACCENTED = 1.25
"""Bytes of UTF-8 for each character that text of mostly Latin words stays below; of most other scripts it is two."""
_SCRIPTS = {
    "arabic": {"ARABIC"}, "armenian": {"ARMENIAN"}, "greek": {"GREEK"}, "hindi": {"DEVANAGARI"},
    "nepali": {"DEVANAGARI"}, "persian": {"ARABIC"}, "russian": {"CYRILLIC"}, "serbian": {"CYRILLIC", "LATIN"},
    "tamil": {"TAMIL"}, "yiddish": {"HEBREW"},
}  # fmt: skip
"""The scripts that the stemmer of a language reads, if it is not the Latin one."""


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


@lru_cache(2**17)
def script_of(word: str) -> str:
    """The script of a word in Unicode's name for it, such as CYRILLIC; "" for numbers and scripts without spaces."""
    name = unicodedata.name(word[0], "")
    return name.split()[0] if " LETTER " in name and not _UNSPACED.match(word) else ""


def stemmed_languages(script: str) -> list[str]:
    """The languages whose stemmers read a script."""
    return [language for language in Stemmer.algorithms() if script in _SCRIPTS.get(language, {"LATIN"})]


class WordTokenizer:
    """The words of texts in one language; every distinct word is stemmed once."""

    def __init__(self, language: str) -> None:
        """Raises ConfigError for a language that PyStemmer does not have."""
        if language not in Stemmer.algorithms():
            raise ConfigError(f"env.language is {language!r}; expected one of {', '.join(Stemmer.algorithms())}.")
        self._language = language
        self._scripts = _SCRIPTS.get(language, {"LATIN"})
        name = "EN" if language == "english" else language.upper()
        self._stop_words = frozenset(getattr(stopwords, f"STOPWORDS_{name}", ()))
        self._stems: dict[str, str | None] = {}

    def __call__(self, texts: Sequence[str]) -> list[list[str]]:
        """The stemmed words of each text, in order and with repetitions."""
        words = list(map(words_of, texts))
        stems = self.stems(list(chain.from_iterable(words)))
        ends = accumulate(map(len, words), initial=0)
        return [[stem for stem in stems[start:end] if stem is not None] for start, end in pairwise(ends)]

    def stems(self, words: Sequence[str]) -> list[str | None]:
        """The stem of each word, None for a stop word."""
        if len(self._stems) > _MAX_CACHED_WORDS:
            self._stems = {}
        cached = self._stems
        new = [word for word in dict.fromkeys(words) if word not in cached]
        if new:
            stemmed = Stemmer.Stemmer(self._language, 0).stemWords(new)  # one a call: threads must not share it
            cached |= {
                word: None if word in self._stop_words else stem for word, stem in zip(new, stemmed, strict=True)
            }
        return [cached[word] for word in words]

    def unread_script(self, text: str) -> str:
        """The script of most words of a text if the stemmer does not read it, such as Cyrillic in English; else ""."""
        if "LATIN" in self._scripts and len(text.encode("utf-8", "surrogatepass")) < _ACCENTED * len(text):
            return ""
        scripts = Counter(filter(None, map(script_of, words_of(text))))
        script, count = scripts.most_common(1)[0] if scripts else ("", 0)
        return script if script not in self._scripts and 2 * count > scripts.total() else ""
