"""BM25 for a batch of probes in compiled code.

The scores of the words of a text are added in float32, in word order, as in bm25s; the weighted scores of the texts of
a probe are added in float64. So a ranking is the same to the last bit in any batch. numba compiles the code at first
use and caches it beside this file if that is writable. It runs without the GIL, so an event loop in another thread is
not blocked.
"""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def rank(data, indices, indptr, documents, words, word_ends, weights, term_ends, limits):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Documents, scores and ends (probes,) of the rankings of all probes: at most limits[i] documents, scored above 0.

    `data`, `indices` and `indptr` as in bm25.py; `words`: word ids of all texts, those of text i ending at
    word_ends[i + 1]; `weights` (texts,); the texts of probe i end at term_ends[i + 1]. The workspace is six arrays of
    corpus length.
    """
    probes = len(term_ends) - 1
    of_text = np.zeros(documents, dtype=np.float32)
    of_probe = np.zeros(documents, dtype=np.float64)
    touched_by_text = np.empty(documents, dtype=np.int64)
    touched_by_probe = np.empty(documents, dtype=np.int64)
    in_text = np.zeros(documents, dtype=np.bool_)
    in_probe = np.zeros(documents, dtype=np.bool_)
    ranked_documents = np.empty(limits.sum(), dtype=np.int64)
    ranked_scores = np.empty(limits.sum(), dtype=np.float64)
    ends = np.empty(probes, dtype=np.int64)
    end = 0
    for probe in range(probes):
        count = 0
        for term in range(term_ends[probe], term_ends[probe + 1]):
            touched = 0
            for i in range(word_ends[term], word_ends[term + 1]):
                for j in range(indptr[words[i]], indptr[words[i] + 1]):
                    document = indices[j]
                    of_text[document] += data[j]
                    if not in_text[document]:
                        in_text[document] = True
                        touched_by_text[touched] = document
                        touched += 1
            for j in range(touched):
                document = touched_by_text[j]
                of_probe[document] += weights[term] * np.float64(of_text[document])
                of_text[document] = 0
                in_text[document] = False
                if not in_probe[document]:
                    in_probe[document] = True
                    touched_by_probe[count] = document
                    count += 1
        size = 0
        for j in range(count):
            document = touched_by_probe[j]
            score = of_probe[document]
            of_probe[document] = 0
            in_probe[document] = False
            if score <= 0:
                continue
            if size < limits[probe]:
                size += 1
                _sift_up(ranked_documents[end:], ranked_scores[end:], size - 1, document, score)
            elif _better(document, score, ranked_documents[end], ranked_scores[end]):
                _sift_down(ranked_documents[end:], ranked_scores[end:], size, document, score)
        for last in range(size - 1, 0, -1):
            document, score = ranked_documents[end + last], ranked_scores[end + last]
            ranked_documents[end + last], ranked_scores[end + last] = ranked_documents[end], ranked_scores[end]
            _sift_down(ranked_documents[end:], ranked_scores[end:], last, document, score)
        end += size
        ends[probe] = end
    return ranked_documents[:end], ranked_scores[:end], ends


@njit(nogil=True, cache=True)
def _better(document, score, than_document, than_score):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return score > than_score or (score == than_score and document < than_document)


@njit(nogil=True, cache=True)
def _sift_up(documents, scores, i, document, score):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Insert a document at the end of a heap whose root is the worst document, and restore heap order."""
    while i > 0:
        parent = (i - 1) // 2
        if not _better(documents[parent], scores[parent], document, score):
            break
        documents[i], scores[i] = documents[parent], scores[parent]
        i = parent
    documents[i], scores[i] = document, score


@njit(nogil=True, cache=True)
def _sift_down(documents, scores, size, document, score):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Replace the root of a heap of `size` documents, and restore heap order."""
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _better(documents[child], scores[child], documents[child + 1], scores[child + 1]):
            child += 1
        if not _better(document, score, documents[child], scores[child]):
            break
        documents[i], scores[i] = documents[child], scores[child]
        i = child
    documents[i], scores[i] = document, score
