"""Pairs of texts that are nearly the same, among many: by letters, by words, and by the pieces of long texts.

Candidates are texts that share a key, so that 100,000 texts can be compared with 100,000 others; every candidate is
then compared itself. Texts with one edit between them always share a key; others probably do (MinHash).
"""

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import OSA, Indel

from .folding import SPACELESS

THRESHOLD = 0.8
"""Jaccard similarity of the pieces of near-duplicates."""
SHORTEST, SHORTEST_SPACELESS = 6, 4
"""Minimum characters of two texts that count as near-duplicates if they differ in a letter; the second number is for
scripts without spaces. If they differ in a word, both need `SHORTEST_WORDS` words."""
SHORTEST_WORDS = 2
LETTERS_PER_EDIT = 20
"""Texts of up to twice as many characters may differ in one letter, longer ones in one more for each further 20."""
_LONGEST, _MOST_WORDS = 100, 40
"""Characters and words up to which each is left out once to make the keys; MinHash finds edits of longer texts."""
_SPACELESS = re.compile(f"[{SPACELESS}]")
_PIECE = 5
_BANDS, _ROWS = 16, 4
_BLOCK = 1024
"""Texts whose candidates are in memory at once."""

Keys = npt.NDArray[np.int64]
Pieces = frozenset[int]


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
    first, second = _positions(left), _positions(right)
    texts, other_texts = list(first), list(second)
    near = [
        Near(i, j, value)
        for x, y in _candidates(texts, other_texts)
        if (value := similarity(texts[x], other_texts[y])) is not None
        for i in first[texts[x]]
        for j in second[other_texts[y]]
    ]
    return sorted(near, key=lambda pair: (pair.right, -pair.similarity, pair.left))


def similarity(left: str, right: str) -> float | None:
    """How similar two near-duplicates are, in [0, 1]; None for other texts.

    Near-duplicates differ in a letter (changed, added, left out, or two neighbours swapped; one more for each further
    20 characters from 40 on), or in a word that one has and the other lacks, or only in the order of their words, or
    share 4 of 5 pieces of five characters.
    """
    shorter = min(len(left), len(right))
    shortest = SHORTEST_SPACELESS if _SPACELESS.search(left) and _SPACELESS.search(right) else SHORTEST
    edits = max(1, shorter // LETTERS_PER_EDIT) if shorter >= shortest else 0
    if OSA.distance(left, right, score_cutoff=edits) <= edits or _same_but_for_a_word(left.split(), right.split()):
        return OSA.normalized_similarity(left, right)
    by_pieces = jaccard(pieces(left), pieces(right))
    return by_pieces if by_pieces >= THRESHOLD else None


def jaccard(left: Pieces, right: Pieces) -> float:
    """|A ∩ B| / |A ∪ B|."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)


@lru_cache(maxsize=2**15)
def pieces(text: str) -> Pieces:
    """Hashes of the overlapping pieces of five bytes of a text; a shorter text is one piece."""
    encoded = text.encode("utf-8", "surrogatepass")
    return frozenset(zlib.crc32(encoded[start : start + _PIECE]) for start in range(max(1, len(encoded) - _PIECE + 1)))


def _same_but_for_a_word(left: list[str], right: list[str]) -> bool:
    if min(len(left), len(right)) < SHORTEST_WORDS or abs(len(left) - len(right)) > 1:
        return False
    return sorted(left) == sorted(right) or Indel.distance(left, right, score_cutoff=1) <= 1


def _positions(texts: Sequence[str]) -> dict[str, list[int]]:
    positions: dict[str, list[int]] = {}
    for position, text in enumerate(texts):
        positions.setdefault(text, []).append(position)
    return positions


def _candidates(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of indices that share a key; `left` and `right` hold every text once.

    Texts from one template share keys by the million: `right` is taken in blocks, so that they need not fit in memory.
    """
    kinds = (
        (_letters, _letters),
        (_whole, _fewer_words),
        (_fewer_words, _whole),
        (_in_order, _in_order),
        (_bands, _bands),
    )
    tables = [(_Table(map(of_left, left)), of_right) for of_left, of_right in kinds]
    for start in range(0, len(right), _BLOCK):
        block = right[start : start + _BLOCK]
        pairs = {pair for table, of_right in tables for pair in table.sharing(map(of_right, block))}
        yield from ((i, start + j) for j, i in sorted((j, i) for i, j in pairs))


def _letters(text: str) -> list[int]:
    """Keys of the text and of the texts with one character less: texts one edit apart share one of them."""
    if len(text) > _LONGEST:
        return []
    return [hash(text), *(hash(text[:i] + text[i + 1 :]) for i in range(len(text)))]


def _whole(text: str) -> list[int]:
    return [hash(text)]


def _fewer_words(text: str) -> list[int]:
    words = text.split()
    if len(words) > _MOST_WORDS:
        return []
    return [hash(" ".join(words[:i] + words[i + 1 :])) for i in range(len(words))]


def _in_order(text: str) -> list[int]:
    return [hash(" ".join(sorted(text.split())))]


def _bands(text: str) -> list[int]:
    """Keys by MinHash: 16 bands of four minima each, by multiply-shift hashing."""
    hashes = np.fromiter(pieces(text), dtype=np.uint64)
    minima = ((_MULTIPLIER * hashes + _OFFSET) >> np.uint64(32)).min(axis=1).astype(np.uint32).reshape(_BANDS, _ROWS)
    return [hash((band, row.tobytes())) for band, row in enumerate(minima)]


class _Table:
    """The keys of texts, sorted, and the index of the text that each belongs to."""

    def __init__(self, keys: Iterable[list[int]]) -> None:
        table, owners = _flat(keys)
        order = np.argsort(table, kind="stable")
        self._keys, self._owners = table[order], owners[order]

    def sharing(self, keys: Iterable[list[int]]) -> Iterator[tuple[int, int]]:
        """Yield (index here, index in `keys`) of texts with a key in common; a pair may come more than once."""
        table, owners = _flat(keys)
        starts, ends = np.searchsorted(self._keys, table), np.searchsorted(self._keys, table, side="right")
        for i in np.flatnonzero(ends > starts):
            for owner in self._owners[starts[i] : ends[i]]:
                yield int(owner), int(owners[i])


def _flat(keys: Iterable[list[int]]) -> tuple[Keys, Keys]:
    """All keys, and the index of the text that each belongs to."""
    counts: list[int] = []

    def flat() -> Iterator[int]:
        for hashes in keys:
            counts.append(len(hashes))
            yield from hashes

    table = np.fromiter(flat(), dtype=np.int64)
    return table, np.repeat(np.arange(len(counts), dtype=np.int64), counts)


def _constants() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    constants = np.random.default_rng(20210417).integers(0, 2**64, size=(2, _BANDS * _ROWS, 1), dtype=np.uint64)
    return constants[0] | np.uint64(1), constants[1]


_MULTIPLIER, _OFFSET = _constants()
