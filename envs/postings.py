"""An inverted index in parts: each part sorted by word, the whole put together word by word with bounded memory.

The words of every part and of the whole are sorted, so a range of words is one slice of each part, and the result is
written front to back. It does not depend on how the corpus was cut into parts. The layout is that of bm25s: for the
word at place w, `indices[indptr[w]:indptr[w + 1]]` are the documents that hold it, ascending, and `data` their weights.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import NpyWriter, mapped, read_words, write_words

DATA, INDICES, INDPTR = "data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy"
_AT_ONCE = 2**22
"""Postings held in memory while merging."""

Array = npt.NDArray[Any]
Weigh = Callable[[Array, Array, Array], Array]
"""From (document frequency of the word, document, value in the part), all of shape (n,), to weights (n,)."""


def write_part(folder: Path, texts: Sequence[Sequence[str]]) -> None:
    """Write how often each word stands in each of the tokenised texts."""
    words = sorted({word for text in texts for word in text})
    place = {word: number for number, word in enumerate(words)}
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    tokens = np.fromiter((place[word] for text in texts for word in text), dtype=np.int64, count=int(lengths.sum()))
    documents = np.repeat(np.arange(len(texts), dtype=np.int64), lengths)
    pairs, counts = np.unique(tokens * max(1, len(texts)) + documents, return_counts=True)
    found, held = np.divmod(pairs, max(1, len(texts)))
    write_words(folder, [word.encode("utf-8", "surrogatepass") for word in words])
    np.save(folder / DATA, counts.astype(np.int32))
    np.save(folder / INDICES, held.astype(np.int32))
    np.save(folder / INDPTR, np.searchsorted(found, np.arange(len(words) + 1)))


def merge(parts: Sequence[Path], sizes: Sequence[int], folder: Path, weigh: Weigh) -> int:
    """Merge parts of `sizes` documents each; gives the number of distinct words."""
    words, places = join_words(parts, folder)
    starts = [mapped(part / INDPTR) for part in parts]
    frequency = np.zeros(words, dtype=np.int64)
    for place, start in zip(places, starts, strict=True):
        frequency[place] += np.diff(start)
    indptr = np.concatenate([[0], np.cumsum(frequency)])
    np.save(folder / INDPTR, indptr)
    data, held = [mapped(part / DATA) for part in parts], [mapped(part / INDICES) for part in parts]
    bases = np.concatenate([[0], np.cumsum(sizes)])
    shape = (int(indptr[-1]),)
    with (
        NpyWriter(folder / DATA, np.float32, shape) as weights,
        NpyWriter(folder / INDICES, np.int32, shape) as documents,
    ):
        first = 0
        while first < words:
            last = max(first + 1, int(np.searchsorted(indptr, indptr[first] + _AT_ONCE, side="right")) - 1)
            pieces = []
            for number, place in enumerate(places):
                low, high = np.searchsorted(place, (first, last))
                begin, end = int(starts[number][low]), int(starts[number][high])
                of_word = np.repeat(place[low:high], np.diff(starts[number][low : high + 1]))
                pieces.append((of_word, held[number][begin:end] + bases[number], data[number][begin:end]))
            word, document, value = (np.concatenate(column) for column in zip(*pieces, strict=True))
            order = np.argsort(word, kind="stable")
            documents.write(document[order])
            weights.write(weigh(frequency[word[order]], document[order], value[order]))
            first = last
    return words


def join_words(parts: Sequence[Path], folder: Path) -> tuple[int, list[npt.NDArray[np.int32]]]:
    """Write the words of all parts as one sorted list; gives their number and, for each part, its words' places."""
    distinct: set[bytes] = set()
    for part in parts:
        distinct.update(read_words(part))
    words = sorted(distinct)
    write_words(folder, words)
    place = {word: number for number, word in enumerate(words)}
    return len(words), [np.array([place[word] for word in read_words(part)], dtype=np.int32) for part in parts]
