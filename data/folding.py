"""One form for texts that look the same: compatible characters (NFKC), case, accents, look-alikes of Latin letters."""

import unicodedata

SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Kana and Chinese characters, which are written without spaces between words, as a range of a pattern."""
_LOOKALIKES = {
    ord(lookalike): latin
    for latin, lookalikes in {
        **{"a": "\u0430\u03b1\u0251", "b": "\u0432", "c": "\u0441", "d": "\u0501\u0111", "e": "\u0435\u03b5"},
        **{"g": "\u0261", "h": "\u04bb\u043d\u0127", "i": "\u0456\u03b9\u0131", "j": "\u0458", "k": "\u043a\u03ba"},
        **{"l": "\u04cf\u0142", "m": "\u043c", "n": "\u03b7", "o": "\u043e\u03bf\u00f8", "p": "\u0440\u03c1"},
        **{"q": "\u051b", "s": "\u0455", "t": "\u0442\u03c4", "u": "\u03c5", "v": "\u03bd", "w": "\u051d"},
        **{"x": "\u0445\u03c7", "y": "\u0443", "ae": "\u00e6", "oe": "\u0153"},
    }.items()
    for lookalike in lookalikes
}
"""Lower-case letters of Cyrillic and Greek that look like Latin ones, and Latin ones whose strokes are no accents. The
Greek mu is not among them: 5 \u00b5g are not 5 mg."""


def folded(text: str) -> str:
    """The text in one form: without case, accents, invisible characters and look-alikes of Latin letters."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
    plain = "".join(
        character
        for character in decomposed
        if not "\u0300" <= character <= "\u036f" and unicodedata.category(character) != "Cf"
    )
    return unicodedata.normalize("NFC", plain).translate(_LOOKALIKES)
