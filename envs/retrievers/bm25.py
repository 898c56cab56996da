"""BM25 over words: bm25s by default, rank-bm25 as the slow reference. Both give the same scores.

The formula is Lucene's: Σ over the words of the query, with repetitions, of
idf(w) · tf / (tf + k1·(1 − b + b·|d| / mean |d|)) with idf(w) = ln(1 + (N − df + ½) / (df + ½)), k1 = 1.2, b = 0.75.

The files of an index are those of bm25s: for the word with id w, `indices[indptr[w]:indptr[w + 1]]` are the documents
that hold it, ascending, and `data` their weights, rounded as bm25s does. bm25s has no weights of texts, so the search
is our own (bm25_kernel.py).
"""

import json
import logging
from collections import Counter
from collections.abc import Sequence, Sized
from functools import lru_cache
from itertools import chain
from math import log
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rank_bm25 import BM25Okapi
from scipy import sparse

from ...configs.environment import EnvironmentConfig
from ...data.types import Document
from ...errors import DataError
from ...logs import Progress
from ..index import SortedStrings, mapped, offsets_of, whole, write_strings
from ..plan import Probe
from ..presets import RetrieverPreset
from . import bm25_kernel
from .base import Retriever, RetrieverFactory, Scored, SearchedIndex, best
from .tokenizer import WordTokenizer, stemmed_languages

logger = logging.getLogger(__name__)

K1, B = 1.2, 0.75
FREQUENT = 0.1
"""RM3 expands with no word that occurs in more than this share of the documents (methods/training_free.py)."""
LENGTHS, WORDS = "lengths.npy", "words"
_TOKENS, _SCRIPTS = "tokens.npy", "unread_scripts.json"
_DTYPES = {"data": np.float32, "indices": np.int32, "indptr": np.int64}
_FILE = "{}.csc.index.npy"
_MANY = 0.1
"""Share of the texts that are not stemmed from which on a build warns."""
_CACHED_WORDS = 2**17


class Bm25Factory(RetrieverFactory):
    """BM25 by one of its engines."""

    def __init__(
        self, preset: RetrieverPreset, config: EnvironmentConfig, members: Sequence[SearchedIndex] = ()
    ) -> None:
        """Raises as `WordTokenizer`."""
        super().__init__(preset, config, members)
        self.tokenizer = WordTokenizer(config.language)

    @property
    def settings(self) -> dict[str, object]:
        """With the formula."""
        return super().settings | {"engine": self.config.engine, "language": self.config.language, "k1": K1, "b": B}

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None = None) -> None:
        """Write the words of one block of the corpus, and how many texts are of a script that is not stemmed."""
        texts = [document.contents for document in documents]
        tokens = self.tokenizer(texts)
        numbers: dict[str, int] = {}
        flat = [numbers.setdefault(word, len(numbers)) for word in chain.from_iterable(tokens)]
        np.save(folder / _TOKENS, np.array(flat, dtype=np.int32))
        np.save(folder / LENGTHS, np.array(list(map(len, tokens)), dtype=np.int32))
        (folder / WORDS).write_text(json.dumps(list(numbers)), encoding="utf-8")
        (folder / _SCRIPTS).write_text(json.dumps(Counter(map(self.tokenizer.unread_script, texts))))

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write .npy arrays and the words as one text. DataError if no document holds a word."""
        lengths, tokens = self.join(parts, folder)
        if self.config.engine == "rank_bm25":
            np.save(folder / _TOKENS, np.concatenate(tokens))
            return
        weights = lucene(lengths, tokens)
        for name, dtype in _DTYPES.items():
            np.save(folder / _FILE.format(name), getattr(weights, name).astype(dtype, copy=False))

    def join(self, parts: Sequence[Path], folder: Path) -> tuple[npt.NDArray[np.int32], list[npt.NDArray[np.int32]]]:
        """Write the words and lengths (documents,) of all parts. Returns the lengths, and the word ids of the texts of
        each part, one text after the other. DataError if no document holds a word."""
        self._warn_of_scripts(parts)
        lengths = np.concatenate([np.load(part / LENGTHS) for part in parts])
        if not lengths.any():
            raise DataError(
                f"none of the {len(lengths)} documents holds a word that BM25 could index "
                "(stop words and single letters do not count). Check the title and text fields of the corpus."
            )
        np.save(folder / LENGTHS, lengths)
        part_words: list[list[str]] = [json.loads((part / WORDS).read_bytes()) for part in parts]
        words = sorted(set(chain.from_iterable(part_words)))
        write_strings(folder, WORDS, words)
        ids = {word: number for number, word in enumerate(words)}
        tokens = [
            np.array([ids[word] for word in words_of_part], dtype=np.int32)[np.load(part / _TOKENS)]
            for part, words_of_part in zip(parts, part_words, strict=True)
        ]
        return lengths, tokens

    def _warn_of_scripts(self, parts: Sequence[Path]) -> None:
        texts: Counter[str] = Counter()
        for part in parts:
            texts.update(json.loads((part / _SCRIPTS).read_bytes()))
        total, stemmed = texts.total(), texts.pop("", 0)
        if total - stemmed <= _MANY * total:
            return
        script = texts.most_common(1)[0][0]
        if languages := stemmed_languages(script):
            remedy = f"If most texts are like that, set env.language to {' or '.join(languages)}."
        else:
            remedy = "There is no stemmer for this script; a multilingual dense retriever may serve it."
        logger.warning(
            "%.0f %% of the texts are mostly in a script that env.language=%s does not stem, such as %s: their words "
            "are found only exactly as they are written. %s",
            100 * (total - stemmed) / total, self.config.language, script.capitalize(), remedy,
        )  # fmt: skip

    def load(self, folder: Path, documents: Sized) -> Retriever:
        """Open what `merge` wrote; with bm25s everything stays on disk (memory-mapped). Raises IndexFolderError."""
        with whole(folder):
            return (Bm25s if self.config.engine == "bm25s" else RankBm25)(folder, self.tokenizer)


def _idf(documents: int, frequency: int) -> float:
    return log(1 + (documents - frequency + 0.5) / (frequency + 0.5))


def lucene(lengths: npt.NDArray[np.int32], tokens: Sequence[npt.NDArray[np.int32]]) -> sparse.csc_matrix:
    """The weights (documents, words) of the formula, rounded as in bm25s, so that scores are equal to the last bit.

    `lengths` (documents,) and `tokens` as `Bm25Factory.join` returns them.
    """
    ids = np.concatenate(tokens)
    shape = (len(lengths), int(ids.max()) + 1)
    counts = sparse.csr_matrix((np.ones(len(ids), np.int32), ids, offsets_of(lengths.tolist())), shape)
    counts.sum_duplicates()
    weights = counts.tocsc()
    frequencies = np.diff(weights.indptr)
    distinct, inverse = np.unique(frequencies, return_inverse=True)
    idf = np.array([_idf(len(lengths), df) for df in distinct.tolist()], dtype=np.float32)[inverse]
    norms = K1 * (1 - B + B * lengths / lengths.mean())
    tf = weights.data.astype(np.float32)
    weights.data = (np.repeat(idf, frequencies) * (tf / (norms[weights.indices] + tf))).astype(np.float32)
    return weights


class Bm25s(Retriever):
    """Ranks probes by Σ wᵢ·BM25(tᵢ) over a bm25s index, in compiled code."""

    def __init__(self, folder: Path, tokenizer: WordTokenizer) -> None:
        words = SortedStrings(folder, WORDS)
        self._tokenizer, self._documents = tokenizer, len(mapped(folder / LENGTHS))
        self._position = lru_cache(_CACHED_WORDS)(words.position)
        self._data, self._indices, self._indptr = (mapped(folder / _FILE.format(name)) for name in _DTYPES)
        frequent = np.flatnonzero(np.diff(self._indptr) > FREQUENT * self._documents)
        self.frequent_terms = [words[i] for i in frequent.tolist()]

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents.

        Only documents with a score above 0 are ranked. A document that shares no word with the probe scores 0, so no
        omitted document is better than one without a match. With positive weights these are exactly the documents
        without a match; negative weights can push further documents to 0 or below.
        """
        terms = [term for probe in probes for term in probe.terms]
        texts = self._tokenizer([term.text for term in terms])
        words = [[number for word in text if (number := self._position(word)) >= 0] for text in texts]
        documents, scores, ends = bm25_kernel.rank(
            self._data,
            self._indices,
            self._indptr,
            self._documents,
            np.array(list(chain.from_iterable(words)), dtype=np.int64),
            offsets_of(map(len, words)),
            np.array([term.weight for term in terms], dtype=np.float64),
            offsets_of(len(probe.terms) for probe in probes),
            np.minimum(np.array(limits, dtype=np.int64), self._documents),
        )
        bounds = ends.tolist()
        return [Scored(documents[a:b], scores[a:b]) for a, b in zip([0, *bounds], bounds, strict=False)]


class _LuceneOkapi(BM25Okapi):
    """rank-bm25's Okapi with Lucene's idf; its term part still carries the constant factor k1 + 1."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        self.idf = {word: _idf(self.corpus_size, df) for word, df in nd.items()}


class RankBm25(Retriever):
    """As Bm25s, by rank-bm25."""

    def __init__(self, folder: Path, tokenizer: WordTokenizer) -> None:
        strings = SortedStrings(folder, WORDS)
        words = [strings[number] for number in range(len(strings))]
        tokens, ends = np.load(folder / _TOKENS), np.cumsum(np.load(folder / LENGTHS), dtype=np.int64)
        documents = [[words[number] for number in part.tolist()] for part in np.split(tokens, ends[:-1])]
        self._model, self._tokenizer = _LuceneOkapi(documents, k1=K1, b=B), tokenizer
        counts = Counter(word for document in self._model.doc_freqs for word in document)
        self.frequent_terms = sorted(word for word, count in counts.items() if count > FREQUENT * len(ends))

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """As Bm25s.rank."""
        rankings = []
        for probe, limit in zip(probes, limits, strict=True):
            total = np.zeros(self._model.corpus_size)
            for term, words in zip(probe.terms, self._tokenizer([term.text for term in probe.terms]), strict=True):
                total += term.weight * np.asarray(self._model.get_scores(words)) / (K1 + 1)
            matches = np.flatnonzero(total > 0)
            rankings.append(best(matches, total[matches], limit))
        return rankings
