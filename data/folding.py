"""One form for texts that look the same: compatible characters (NFKC), case, accents."""

import unicodedata

SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Kana and Chinese characters, which are written without spaces between words, as a range of a pattern."""


def folded(text: str) -> str:
    """The text in one form: without case, accents and invisible characters."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
    plain = "".join(
        character
        for character in decomposed
        if not "\u0300" <= character <= "\u036f" and unicodedata.category(character) != "Cf"
    )
    return unicodedata.normalize("NFC", plain)
