"""An inverted index in parts, each sorted by word, that are merged word by word in bounded memory.

The words of every part and of the result are sorted, so a range of words is one slice of each part, and the result is
written sequentially. It does not depend on how the corpus was split into parts. The layout is that of bm25s: for the
word with id w, `indices[indptr[w]:indptr[w + 1]]` are the documents that hold it, ascending, and `data` their weights.
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


def write_part(
    folder: Path, words: Sequence[bytes], tokens: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]
) -> None:
    """Write the count of each word in each text.

    words: sorted and distinct; tokens: the positions in `words` of the words of all texts, one text after the other;
    lengths (texts,): the number of words of each text.
    """
    texts = len(lengths)
    numbers = np.repeat(np.arange(texts, dtype=np.int64), lengths)
    pairs, counts = np.unique(tokens.astype(np.int64) * max(1, texts) + numbers, return_counts=True)
    pair_words, pair_documents = np.divmod(pairs, max(1, texts))
    write_words(folder, words)
    np.save(folder / DATA, counts.astype(np.int32))
    np.save(folder / INDICES, pair_documents.astype(np.int32))
    np.save(folder / INDPTR, np.searchsorted(pair_words, np.arange(len(words) + 1)))


def merge(parts: Sequence[Path], sizes: Sequence[int], folder: Path, weigh: Weigh) -> int:
    """Merge parts; part i holds `sizes[i]` documents. Returns the number of distinct words."""
    words, word_ids = join_words(parts, folder)
    starts = [mapped(part / INDPTR) for part in parts]
    frequency = frequencies(parts, word_ids, words)
    indptr = np.concatenate([[0], np.cumsum(frequency)])
    np.save(folder / INDPTR, indptr)
    data, indices = [mapped(part / DATA) for part in parts], [mapped(part / INDICES) for part in parts]
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
            for number, ids in enumerate(word_ids):
                low, high = np.searchsorted(ids, (first, last))
                begin, end = int(starts[number][low]), int(starts[number][high])
                of_word = np.repeat(ids[low:high], np.diff(starts[number][low : high + 1]))
                pieces.append((of_word, indices[number][begin:end] + bases[number], data[number][begin:end]))
            word, document, value = (np.concatenate(column) for column in zip(*pieces, strict=True))
            order = np.argsort(word, kind="stable")
            documents.write(document[order])
            weights.write(weigh(frequency[word[order]], document[order], value[order]))
            first = last
    return words


def frequencies(parts: Sequence[Path], word_ids: Sequence[npt.NDArray[np.int32]], words: int) -> npt.NDArray[np.int64]:
    """The number of documents that hold each of the `words` words; arguments as `join_words` returns them."""
    frequency = np.zeros(words, dtype=np.int64)
    for part, ids in zip(parts, word_ids, strict=True):
        frequency[ids] += np.diff(mapped(part / INDPTR))
    return frequency


def join_words(parts: Sequence[Path], folder: Path) -> tuple[int, list[npt.NDArray[np.int32]]]:
    """Write the words of all parts as one sorted list. Returns their number and each part's word ids."""
    distinct: set[bytes] = set()
    for part in parts:
        distinct.update(read_words(part))
    words = sorted(distinct)
    write_words(folder, words)
    word_ids = {word: number for number, word in enumerate(words)}
    return len(words), [np.array([word_ids[word] for word in read_words(part)], dtype=np.int32) for part in parts]
