"""Pairs of texts that are nearly the same: by letters, by words, and by the pieces of long texts.

Every pair is compared (`rapidfuzz.process.cdist`), in blocks; `similarity` decides about those with most letters in
common.
"""

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from rapidfuzz.distance import OSA, Indel
from rapidfuzz.process import cdist

from .folding import SPACELESS

THRESHOLD = 0.8
"""Jaccard similarity of the pieces of near-duplicates."""
SHORTEST, SHORTEST_SPACELESS = 6, 4
"""Minimum characters of two texts that count as near-duplicates if they differ in a letter; the second number is for
scripts without spaces."""
SHORTEST_WORDS = 2
"""Words that two texts have at least if they differ in a word."""
LETTERS_PER_EDIT = 20
"""Texts of up to twice as many characters may differ in one letter, longer ones in one more for each further 20."""
COMMON = 0.75
"""Least share of letters in common, in their order, of near-duplicates that differ in more than the order of words."""
_SPACELESS = re.compile(f"[{SPACELESS}]")
_PIECE = 5
_BLOCK = 2048


class Near(NamedTuple):
    """A text of `left` and one of `right`, by index."""

    left: int
    right: int
    similarity: float
    """In [0, 1]: the share of letters that need no edit, or the Jaccard similarity of their pieces."""


def near_duplicates(left: Sequence[str], right: Sequence[str]) -> list[Near]:
    """All pairs that are nearly, or exactly, the same (`similarity`), by the text of `right`, the nearest first.

    The texts are compared as they are: fold case, punctuation and accents before (`leakage.words`).
    """
    candidates: set[tuple[int, int]] = set()
    for start in range(0, len(left), _BLOCK):
        block = left[start : start + _BLOCK]
        shares = cdist(block, right, scorer=Indel.normalized_similarity, score_cutoff=COMMON, dtype=np.float32)
        candidates.update((start + int(i), int(j)) for i, j in zip(*np.nonzero(shares), strict=True))
    by_words: dict[str, list[int]] = {}
    for index, text in enumerate(right):
        by_words.setdefault(_in_order(text), []).append(index)
    candidates.update((i, j) for i, text in enumerate(left) for j in by_words.get(_in_order(text), ()))
    near = [Near(i, j, value) for i, j in candidates if (value := similarity(left[i], right[j])) is not None]
    return sorted(near, key=lambda pair: (pair.right, -pair.similarity, pair.left))


def similarity(left: str, right: str) -> float | None:
    """How similar two near-duplicates are, in [0, 1]; None for other texts.

    Near-duplicates differ only in the order of their words; or have three quarters of their letters in common and
    differ in a letter (changed, added, left out, or two neighbours swapped; one more for each further 20 characters
    from 40 on), or in a word that one has and the other lacks, or share 4 of 5 pieces of five characters.
    """
    if _in_order(left) == _in_order(right):
        return OSA.normalized_similarity(left, right)
    if Indel.normalized_similarity(left, right, score_cutoff=COMMON) < COMMON:
        return None
    shorter = min(len(left), len(right))
    shortest = SHORTEST_SPACELESS if _SPACELESS.search(left) and _SPACELESS.search(right) else SHORTEST
    edits = max(1, shorter // LETTERS_PER_EDIT) if shorter >= shortest else 0
    if OSA.distance(left, right, score_cutoff=edits) <= edits or _one_word_more(left.split(), right.split()):
        return OSA.normalized_similarity(left, right)
    by_pieces = jaccard(pieces(left), pieces(right))
    return by_pieces if by_pieces >= THRESHOLD else None


def jaccard(left: frozenset[int], right: frozenset[int]) -> float:
    """|A ∩ B| / |A ∪ B|."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)


@lru_cache(maxsize=2**15)
def pieces(text: str) -> frozenset[int]:
    """Hashes of the overlapping pieces of five bytes of a text; a shorter text is one piece."""
    encoded = text.encode("utf-8", "surrogatepass")
    return frozenset(zlib.crc32(encoded[start : start + _PIECE]) for start in range(max(1, len(encoded) - _PIECE + 1)))


def _one_word_more(left: list[str], right: list[str]) -> bool:
    return min(len(left), len(right)) >= SHORTEST_WORDS and Indel.distance(left, right, score_cutoff=1) <= 1


def _in_order(text: str) -> str:
    return " ".join(sorted(text.split()))
