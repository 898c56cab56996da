"""BM25 for a whole batch of probes in compiled code: the scores, ties and order of the plain path in envs/bm25.py.

Per text the parts of its words are added in float32, in the order of the words, as bm25s does; the weighted texts of a
probe are added in float64. So a ranking is the same to the last bit in any batch and on either path. The code is
compiled by numba at the first use, kept on disk beside this file where that can be written, and runs without the
interpreter lock: an event loop in another thread stays free.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

from .fusion import Scored
from .plan import Probe

Tokenise = Callable[[Sequence[str]], list[list[str]]]

_WORD = re.compile(r"(?u)\b\w\w+\b")
"""What bm25s takes for a word; everything else about words is left to `tokenise`."""
_KNOWN_WORDS = 500_000


class Vocabulary:
    """Word numbers of query texts. Every distinct word is stemmed once, not once per query."""

    def __init__(self, number: Callable[[str], int], tokenise: Tokenise) -> None:
        """`number` of a stemmed word among those of the index, -1 where it is not there."""
        self._number = number
        self._tokenise = tokenise
        self._known: dict[str, int] = {}

    def __call__(self, text: str) -> list[int]:
        """Number of each indexed word of the text, in order and with repetitions."""
        words = _WORD.findall(text.lower())
        new = list({word for word in words if word not in self._known})
        if new:
            if len(self._known) > _KNOWN_WORDS:
                self._known.clear()
                new = list(set(words))
            for word, stems in zip(new, self._tokenise(new), strict=True):
                self._known[word] = self._number(stems[0]) if stems else -1
        return [number for word in words if (number := self._known[word]) >= 0]


class BatchSearch:
    """Ranks probes over the word × document matrix of a bm25s index."""

    def __init__(self, scores: Mapping[str, npt.NDArray], documents: int, vocabulary: Vocabulary) -> None:
        """`scores`: `data`, `indices` and `indptr` as bm25s holds them, one row of documents per word."""
        self._data, self._indices, self._indptr = (np.asarray(scores[name]) for name in ("data", "indices", "indptr"))
        self._documents = documents
        self._vocabulary = vocabulary

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe: at most limits[i] documents, those with a score above 0."""
        terms = [term for probe in probes for term in probe.terms]
        words = [self._vocabulary(term.text) for term in terms]
        documents, scores, ends = _rank(
            self._data,
            self._indices,
            self._indptr,
            self._documents,
            np.array([number for part in words for number in part], dtype=np.int64),
            np.cumsum([0, *map(len, words)]),
            np.array([term.weight for term in terms], dtype=np.float64),
            np.cumsum([0, *(len(probe.terms) for probe in probes)]),
            np.minimum(np.array(limits, dtype=np.int64), self._documents),
        )
        bounds = ends.tolist()
        return [Scored(documents[a:b], scores[a:b]) for a, b in zip([0, *bounds], bounds, strict=False)]


@njit(nogil=True, cache=True)
def _rank(data, indices, indptr, documents, words, word_ends, weights, term_ends, limits):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Score and select, one probe after the other; three arrays of the corpus' length are the whole workspace."""
    probes = len(term_ends) - 1
    of_text = np.zeros(documents, dtype=np.float32)
    of_probe = np.zeros(documents, dtype=np.float64)
    touched_by_text = np.empty(documents, dtype=np.int64)
    touched_by_probe = np.empty(documents, dtype=np.int64)
    in_text = np.zeros(documents, dtype=np.bool_)
    in_probe = np.zeros(documents, dtype=np.bool_)
    found_documents = np.empty(limits.sum(), dtype=np.int64)
    found_scores = np.empty(limits.sum(), dtype=np.float64)
    ends = np.empty(probes, dtype=np.int64)
    end = 0
    for probe in range(probes):
        count = 0
        for term in range(term_ends[probe], term_ends[probe + 1]):
            seen = 0
            for place in range(word_ends[term], word_ends[term + 1]):
                for at in range(indptr[words[place]], indptr[words[place] + 1]):
                    document = indices[at]
                    of_text[document] += data[at]
                    if not in_text[document]:
                        in_text[document] = True
                        touched_by_text[seen] = document
                        seen += 1
            for at in range(seen):
                document = touched_by_text[at]
                of_probe[document] += weights[term] * np.float64(of_text[document])
                of_text[document] = 0
                in_text[document] = False
                if not in_probe[document]:
                    in_probe[document] = True
                    touched_by_probe[count] = document
                    count += 1
        size = 0
        for at in range(count):
            document = touched_by_probe[at]
            score = of_probe[document]
            of_probe[document] = 0
            in_probe[document] = False
            if score <= 0:
                continue
            if size < limits[probe]:
                size += 1
                _rise(found_documents[end:], found_scores[end:], size - 1, document, score)
            elif _better(document, score, found_documents[end], found_scores[end]):
                _sink(found_documents[end:], found_scores[end:], size, document, score)
        for last in range(size - 1, 0, -1):
            document, score = found_documents[end + last], found_scores[end + last]
            found_documents[end + last], found_scores[end + last] = found_documents[end], found_scores[end]
            _sink(found_documents[end:], found_scores[end:], last, document, score)
        end += size
        ends[probe] = end
    return found_documents[:end], found_scores[:end], ends


@njit(nogil=True, cache=True)
def _better(document, score, than_document, than_score):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return score > than_score or (score == than_score and document < than_document)


@njit(nogil=True, cache=True)
def _rise(documents, scores, at, document, score):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Put a document at the end of a heap whose root is the worst one."""
    while at > 0:
        parent = (at - 1) // 2
        if not _better(documents[parent], scores[parent], document, score):
            break
        documents[at], scores[at] = documents[parent], scores[parent]
        at = parent
    documents[at], scores[at] = document, score


@njit(nogil=True, cache=True)
def _sink(documents, scores, size, document, score):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Put a document in the place of the root of a heap of `size`."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _better(documents[child], scores[child], documents[child + 1], scores[child + 1]):
            child += 1
        if not _better(document, score, documents[child], scores[child]):
            break
        documents[at], scores[at] = documents[child], scores[child]
        at = child
    documents[at], scores[at] = document, score
