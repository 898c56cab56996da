"""Near-duplicates among short texts by MinHash (Broder 1997), without comparing every pair.

A text is the set of its pieces of five characters, in lower case and without punctuation. What a signature of 64
hashes proposes (16 bands of 4: a pair of similarity .8 is missed 2 times in 10,000) is compared exactly, so nothing
is reported whose Jaccard similarity is below the threshold. It finds typing errors, changed word forms and a word more
or less; it misses paraphrases, and it reports questions from one template that differ in a name or a year.
"""

import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .leakage import words

THRESHOLD = 0.8
_PIECE = 5
_BANDS, _ROWS = 16, 4

Pieces = npt.NDArray[np.uint32]


class Near(NamedTuple):
    """A text of `right` and the text of `left` that is most like it."""

    left: int
    right: int
    similarity: float
    """Jaccard similarity of their pieces, in [0, 1]."""


def near_duplicates(left: Sequence[str], right: Sequence[str], threshold: float = THRESHOLD) -> list[Near]:
    """For each text of `right` that has one, the most similar of `left` at `threshold` or above (ties: the first)."""
    pieces = [_pieces(text) for text in left]
    buckets: dict[bytes, list[int]] = defaultdict(list)
    for place, found in enumerate(pieces):
        for band in _bands(found):
            buckets[band].append(place)
    near: list[Near] = []
    for place, text in enumerate(right):
        mine = _pieces(text)
        proposed = sorted({other for band in _bands(mine) for other in buckets.get(band, ())})
        best = max(((jaccard(pieces[other], mine), -other) for other in proposed), default=(0.0, 0))
        if proposed and best[0] >= threshold:
            near.append(Near(-best[1], place, best[0]))
    return near


def jaccard(one: Pieces, other: Pieces) -> float:
    """|A ∩ B| / |A ∪ B| of two sorted sets of pieces."""
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)


def _pieces(text: str) -> Pieces:
    plain = words(text).encode("utf-8", "surrogatepass")
    hashes = [zlib.crc32(plain[start : start + _PIECE]) for start in range(max(1, len(plain) - _PIECE + 1))]
    return np.unique(np.array(hashes, dtype=np.uint32))


def _multipliers() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    drawn = np.random.default_rng(20210417).integers(0, 2**64, size=(2, _BANDS * _ROWS, 1), dtype=np.uint64)
    return drawn[0] | np.uint64(1), drawn[1]


_TIMES, _PLUS = _multipliers()


def _bands(pieces: Pieces) -> list[bytes]:
    """The keys of a text's buckets, by band: multiply-shift hashes, the least of each, four at a time."""
    hashed = (_TIMES * pieces.astype(np.uint64) + _PLUS) >> np.uint64(32)
    least = hashed.min(axis=1).astype(np.uint32).reshape(_BANDS, _ROWS)
    return [bytes([band]) + row.tobytes() for band, row in enumerate(least)]
