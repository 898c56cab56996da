"""BM25 over words: bm25s by default, rank-bm25 as the slow reference. Both give the same scores.

The formula is Lucene's: Σ over the words of the query, with repetitions, of
idf(w) · tf / (tf + k1·(1 − b + b·|d| / mean |d|)) with idf(w) = ln(1 + (N − df + ½) / (df + ½)), k1 = 1.2, b = 0.75.
Words are lower-cased, English stopwords are dropped, the rest is stemmed (Snowball).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence, Sized
from itertools import chain
from math import log
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from rank_bm25 import BM25Okapi

from ...data.types import Document
from ...errors import DataError
from ...logs import Progress
from ..index import postings
from ..index.arrays import NpyWriter, SortedWords, mapped, read_words, write_words
from ..plan import Probe
from ..recipes import RetrieverRecipe
from .base import Retriever
from .bm25_kernel import BatchSearch
from .fusion import Scored, best
from .vocabulary import Vocabulary, stems, words_of

Engine = Literal["bm25s", "rank_bm25"]

K1, B = 1.2, 0.75
FREQUENT = 0.1
"""RM3 expands with no word that occurs in more than this share of the documents (methods/rm3.py)."""
LENGTHS = "lengths.npy"
_TOKENS = "tokens.npy"
_ARRAYS = {"data": postings.DATA, "indices": postings.INDICES, "indptr": postings.INDPTR}
_CHUNK = 1000
_NONE = np.empty(0, dtype=np.int32)


def tokenise(texts: Sequence[str]) -> list[list[str]]:
    """The stemmed words of each text, in order and with repetitions."""
    return [[stem for stem in stems(words_of(text)) if stem is not None] for text in texts]


def _number_words(
    texts: Sequence[str], progress: Progress | None
) -> tuple[list[bytes], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """What `tokenise` gives as arrays: the distinct words, sorted; the positions in them of the words of all texts, one
    text after the other; the number of words of each text."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    occurrences = [_NONE]
    counts: list[int] = []
    for start in range(0, len(texts), _CHUNK):
        of_chunk = list(map(words_of, texts[start : start + _CHUNK]))
        counts += map(len, of_chunk)
        occurrences.append(np.fromiter(map(numbers.__getitem__, chain.from_iterable(of_chunk)), dtype=np.int32))
        if progress:
            progress(len(counts), len(texts))
    stemmed = [None if stem is None else stem.encode("utf-8", "surrogatepass") for stem in stems(list(numbers))]
    words = sorted({stem for stem in stemmed if stem is not None})
    positions = {stem: position for position, stem in enumerate(words)}
    of_number = np.array([-1 if stem is None else positions[stem] for stem in stemmed], dtype=np.int32)
    tokens = of_number[np.concatenate(occurrences)]
    texts_of_tokens = np.repeat(np.arange(len(texts), dtype=np.int32), np.array(counts, dtype=np.int64))
    kept = tokens >= 0
    lengths = np.bincount(texts_of_tokens[kept], minlength=len(texts)).astype(np.int32)
    return words, tokens[kept], lengths


def join_lengths(parts: Sequence[Path], folder: Path) -> tuple[list[int], npt.NDArray[np.int32]]:
    """Write the lengths of all documents. Returns the documents of each part, and the lengths, in words.

    DataError if no document holds a word.
    """
    part_lengths = [np.load(part / LENGTHS, allow_pickle=False) for part in parts]
    lengths = np.concatenate(part_lengths)
    np.save(folder / LENGTHS, lengths)
    if not lengths.any():
        raise DataError(
            f"none of the {len(lengths)} documents holds a word that BM25 could index "
            "(stopwords and single letters do not count). Check the title and text fields of the corpus."
        )
    return [len(part) for part in part_lengths], lengths


def _idf(documents: int, frequency: int) -> float:
    return log(1 + (documents - frequency + 0.5) / (frequency + 0.5))


def lucene(lengths: npt.NDArray[np.int32]) -> postings.Weigh:
    """The formula, rounded as in bm25s, so that scores are equal to the last bit."""
    total = len(lengths)
    norms = K1 * (1 - B + B * lengths / lengths.mean())

    def weigh(
        frequencies: npt.NDArray[np.int64], documents: npt.NDArray[np.int64], counts: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        distinct, inverse = np.unique(frequencies, return_inverse=True)
        idf = np.array([_idf(total, df) for df in distinct.tolist()], dtype=np.float32)
        tf = counts.astype(np.float32)
        weights: npt.NDArray[np.float32] = (idf[inverse] * (tf / (norms[documents] + tf))).astype(np.float32)
        return weights

    return weigh


class Bm25Kind:
    """BM25 by one of its two engines."""

    fingerprint = None

    def __init__(self, recipe: RetrieverRecipe, engine: Engine) -> None:
        self.recipe, self.engine = recipe, engine

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None = None) -> None:
        """Write the words of one block of the corpus."""
        words, tokens, lengths = _number_words([document.contents for document in documents], progress)
        np.save(folder / LENGTHS, lengths)
        if self.engine == "bm25s":
            postings.write_part(folder, words, tokens, lengths)
        else:
            write_words(folder, words)
            np.save(folder / _TOKENS, tokens)

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write .npy arrays and the words as one text. DataError if no document holds a word."""
        sizes, lengths = join_lengths(parts, folder)
        if self.engine == "bm25s":
            postings.merge(parts, sizes, folder, lucene(lengths))
            return
        _, word_ids = postings.join_words(parts, folder)
        with NpyWriter(folder / _TOKENS, np.int32, (int(lengths.sum(dtype=np.int64)),)) as tokens:
            for part, ids in zip(parts, word_ids, strict=True):
                tokens.write(ids[np.load(part / _TOKENS, allow_pickle=False)])

    def load(self, folder: Path, documents: Sized) -> Retriever:
        """Open what `merge` wrote; with bm25s everything stays on disk (memory-mapped)."""
        return Bm25s(folder) if self.engine == "bm25s" else RankBm25(folder)


class Bm25s:
    """Ranks probes by Σ wᵢ·BM25(tᵢ) over a bm25s index, in compiled code."""

    def __init__(self, folder: Path) -> None:
        words, documents = SortedWords(folder), len(mapped(folder / LENGTHS))
        arrays = {name: mapped(folder / file) for name, file in _ARRAYS.items()}
        self._batch = BatchSearch(arrays, documents, Vocabulary(words.position))
        frequent = np.flatnonzero(np.diff(arrays["indptr"]) > FREQUENT * documents)
        self.frequent_terms = [words.word(i) for i in frequent.tolist()]
        """The stemmed words that occur in more than FREQUENT of the documents, sorted."""

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents.

        Only documents with a score above 0 are ranked. A document that shares no word with the probe scores 0, so no
        omitted document is better than one without a match. With positive weights these are exactly the documents
        without a match; negative weights can push further documents to 0 or below.
        """
        return self._batch.rank(probes, limits)


class _LuceneOkapi(BM25Okapi):
    """rank-bm25's Okapi with Lucene's idf; its term part still carries the constant factor k1 + 1."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        self.idf = {word: _idf(self.corpus_size, df) for word, df in nd.items()}


class RankBm25:
    """As Bm25s, by rank-bm25."""

    def __init__(self, folder: Path) -> None:
        vocabulary = np.array([word.decode("utf-8", "surrogatepass") for word in read_words(folder)], dtype=object)
        words = vocabulary[np.load(folder / _TOKENS, allow_pickle=False)]
        ends = np.cumsum(np.load(folder / LENGTHS, allow_pickle=False), dtype=np.int64)
        self._model = _LuceneOkapi([part.tolist() for part in np.split(words, ends[:-1])], k1=K1, b=B)
        counts = Counter(word for document in self._model.doc_freqs for word in document)
        self.frequent_terms = sorted(word for word, count in counts.items() if count > FREQUENT * len(ends))

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """As Bm25s.rank."""
        rankings = []
        for probe, limit in zip(probes, limits, strict=True):
            total = np.zeros(self._model.corpus_size)
            for term, words in zip(probe.terms, tokenise([term.text for term in probe.terms]), strict=True):
                total += term.weight * np.asarray(self._model.get_scores(list(words))) / (K1 + 1)
            matches = np.flatnonzero(total > 0)
            rankings.append(best(matches, total[matches], limit))
        return rankings
