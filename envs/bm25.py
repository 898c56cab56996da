"""BM25 over English words: bm25s by default, rank-bm25 as the slow reference. Both give the same scores.

The formula is Lucene's: Σ over the words of the query, each as often as it is written, of
idf(w) · tf / (tf + k1·(1 − b + b·|d| / mean |d|)) with idf(w) = ln(1 + (N − df + ½) / (df + ½)), k1 = 1.2, b = 0.75.
Words are lower-cased, English stopwords are dropped, the rest is stemmed (Snowball).
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from math import log
from pathlib import Path
from typing import Literal, Protocol

import bm25s
import numpy as np
import numpy.typing as npt
import Stemmer
from rank_bm25 import BM25Okapi

from ..errors import DataError
from .fusion import Scored, best
from .plan import Probe

try:
    from .bm25_kernel import BatchSearch, Vocabulary
except ModuleNotFoundError as missing:
    if missing.name != "numba":
        raise
    BatchSearch = None  # type: ignore[assignment,misc]

Engine = Literal["bm25s", "rank_bm25"]
Progress = Callable[[int, int], None]

K1, B = 1.2, 0.75
_CHUNK = 1000


class _Engine(Protocol):
    batch: "BatchSearch | None"
    """Searches whole batches in compiled code, with the same result; None where numba is not installed."""

    def scores(self, words: Sequence[str]) -> npt.NDArray[np.float64]: ...


class Bm25:
    """Ranks probes by Σ wᵢ·BM25(tᵢ)."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents.

        Only documents with a score above 0 are ranked. A document that shares no word with the probe scores 0, so
        what is left out is no better than a document without any match: with weights above 0 exactly the documents
        without a match, with a negative weight also those that it pushes to 0 or below.
        """
        if self._engine.batch is not None:
            return self._engine.batch.rank(probes, limits)
        uses = Counter(term.text for probe in probes for term in probe.terms)
        words = dict(zip(uses, tokenise(list(uses)), strict=True))
        scored: dict[str, npt.NDArray[np.float64]] = {}
        rankings = []
        for probe, limit in zip(probes, limits, strict=True):
            total: npt.NDArray[np.float64] | None = None
            for term in probe.terms:
                if term.text not in scored:
                    scored[term.text] = self._engine.scores(words[term.text])
                part = term.weight * scored[term.text]
                total = part if total is None else total + part
                uses[term.text] -= 1
                if not uses[term.text]:
                    del scored[term.text]
            assert total is not None, "a probe has at least one term"
            found = np.flatnonzero(total > 0)
            rankings.append(best(found, total[found], limit))
        return rankings


def tokenise(texts: Sequence[str]) -> list[list[str]]:
    """The stemmed words of each text, in order and with repetitions."""
    tokens: list[list[str]] = bm25s.tokenize(
        list(texts), stopwords="en", stemmer=Stemmer.Stemmer("english"), return_ids=False, show_progress=False
    )
    return tokens


def write(folder: Path, texts: Sequence[str], engine: Engine, progress: Progress | None = None) -> None:
    """Write what `load` needs: arrays as .npy, the vocabulary as JSON. DataError where no text holds a word."""
    documents: list[list[str]] = []
    for start in range(0, len(texts), _CHUNK):
        documents += tokenise(texts[start : start + _CHUNK])
        if progress:
            progress(len(documents), len(texts))
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in document] for document in documents]
    if not vocabulary:
        raise DataError(
            f"none of the {len(texts)} documents holds a word that BM25 could index "
            "(stopwords and single letters do not count). Check the title and text fields of the corpus."
        )
    if engine == "bm25s":
        model = bm25s.BM25(method="lucene", k1=K1, b=B)
        model.index((ids, vocabulary), show_progress=False)
        model.save(str(folder), show_progress=False)
        return
    np.save(folder / "words.npy", np.fromiter(chain.from_iterable(ids), dtype=np.int32))
    np.save(folder / "ends.npy", np.cumsum([len(document) for document in ids], dtype=np.int64))
    (folder / "vocabulary.json").write_text(json.dumps(list(vocabulary), ensure_ascii=False), encoding="utf-8")


def load(folder: Path, engine: Engine) -> Bm25:
    """Open what `write` wrote; arrays stay on disk (memory-mapped) with bm25s."""
    return Bm25(_Bm25s(folder) if engine == "bm25s" else _RankBm25(folder))


class _Bm25s:
    def __init__(self, folder: Path) -> None:
        self._model = model = bm25s.BM25.load(str(folder), mmap=True, allow_pickle=False)
        # numpy makes each slice of a memory map another memory map, which costs more than the sum of the slice
        model.scores.update({name: np.asarray(model.scores[name]) for name in ("data", "indices", "indptr")})
        self.batch = None
        if BatchSearch is not None:
            vocabulary = Vocabulary(model.vocab_dict, tokenise)
            self.batch = BatchSearch(model.scores, int(model.scores["num_docs"]), vocabulary)

    def scores(self, words: Sequence[str]) -> npt.NDArray[np.float64]:
        known = self._model.get_tokens_ids(words)
        return np.asarray(self._model.get_scores_from_ids(known), dtype=np.float64)


class _LuceneOkapi(BM25Okapi):
    """rank-bm25's Okapi with Lucene's idf; its term part still carries the constant factor k1 + 1."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        self.idf = {word: log(1 + (self.corpus_size - df + 0.5) / (df + 0.5)) for word, df in nd.items()}


class _RankBm25:
    batch = None

    def __init__(self, folder: Path) -> None:
        vocabulary = np.array(json.loads((folder / "vocabulary.json").read_text(encoding="utf-8")), dtype=object)
        words = vocabulary[np.load(folder / "words.npy", allow_pickle=False)]
        ends = np.load(folder / "ends.npy", allow_pickle=False)
        self._model = _LuceneOkapi([part.tolist() for part in np.split(words, ends[:-1])], k1=K1, b=B)

    def scores(self, words: Sequence[str]) -> npt.NDArray[np.float64]:
        return np.asarray(self._model.get_scores(list(words)), dtype=np.float64) / (K1 + 1)
