"""SPLADE: a text is a sparse vector of weighted vocabulary words; a document scores the inner product with the probe.

A probe is the sparse vector Σ wᵢ·s(tᵢ), so its scores are linear in the terms: s(d)·Σ wᵢ·s(tᵢ) = Σ wᵢ·(s(d)·s(tᵢ)).
Models are those of sentence-transformers' SparseEncoder. The index is the matrix vocabulary × documents in compressed
rows: for each word its documents in corpus order and their weights.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import numpy.typing as npt

from ...data.types import Document
from ...errors import ModelError
from ...sources import resolve_model
from ..byte_cache import ByteCache, remembered
from ..index.documents import Documents
from ..plan import Probe, is_effective
from ..recipes import RetrieverRecipe
from .base import Progress
from .encoder import check_device, fill_in, fingerprint_of, finished, loading_kwargs, query_work, truncated_queries
from .fusion import NOTHING, Scored, best

if TYPE_CHECKING:
    from sentence_transformers import SparseEncoder

Words = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""One text: ascending word ids and their weights, both of shape (words,)."""

WEIGHTS, DOCUMENTS, ENDS = "words.weights.npy", "words.documents.npy", "words.ends.npy"
_NO_INDICES, _NO_WEIGHTS = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32)
_CHUNK = 128
_BATCH = 32
_CACHE_BYTES = 128 * 2**20


class Splade:
    """A loaded sparse encoder and its recipe, filled in."""

    def __init__(self, recipe: RetrieverRecipe, model: "SparseEncoder", fingerprint: str) -> None:
        self.recipe = recipe
        self.fingerprint = fingerprint
        self._model = model

    @classmethod
    def open(cls, recipe: RetrieverRecipe, device: str | None = None) -> "Splade":
        """Load the model to a device, as `Encoder.open`. ModelError if it does not exist or is no sparse encoder."""
        from sentence_transformers import SparseEncoder

        assert recipe.model is not None, "a splade recipe names its model"
        check_device(device)
        path, kwargs = resolve_model(recipe.model), loading_kwargs(recipe.padding_side, recipe.dtype)
        try:
            model = SparseEncoder(path, device=device, trust_remote_code=False, **kwargs)
        except Exception as error:
            raise ModelError(
                f"retriever {recipe.name!r}: {recipe.model!r} does not hold a usable sparse encoder "
                f"({type(error).__name__}: {error}). Give env.model a sentence-transformers SparseEncoder, a "
                "transformers folder with a masked-language-model head, or a Hub id that can be reached."
            ) from error
        if recipe.query_model or recipe.pooling or recipe.pair or recipe.closing_token:
            raise ModelError(
                f"retriever {recipe.name!r}: a SPLADE model brings its own pooling and its one encoder. Remove "
                "query_model, pooling, pair and closing_token from env.recipe."
            )
        model.default_prompt_name = None
        similarity = "cos" if model.similarity_fn_name == "cosine" else "dot"
        return cls(
            fill_in(recipe, model, model, similarity), model, fingerprint_of(path, getattr(model[0], "config", None))
        )

    def queries(self, texts: Sequence[str]) -> list[Words]:
        """The weighted words of each query text, in the query template."""
        return self._encode([self.recipe.query_text(text) for text in texts], self.recipe.query_max_length, "query")

    def truncated(self, texts: Sequence[str]) -> int:
        """How many of these query texts are longer than a query may be, and so are read only in part."""
        return truncated_queries(self._model, self.recipe, texts)

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None = None) -> None:
        """Write the words of a block of documents, document by document."""
        texts = ["".join(self.recipe.document_text(self.recipe.content_of(document))) for document in documents]
        longest_first = np.argsort([-len(text) for text in texts], kind="stable").tolist()
        encoded: dict[int, Words] = {}
        for start in range(0, len(texts), _CHUNK):
            chunk = longest_first[start : start + _CHUNK]
            encoded.update(zip(chunk, self._encode([texts[i] for i in chunk], None, "document"), strict=True))
            if progress:
                progress(len(encoded), len(texts))
        words = [encoded[i] for i in range(len(texts))]
        ends = np.cumsum([0, *(len(word_ids) for word_ids, _ in words)], dtype=np.int64)
        weights = np.concatenate([_NO_WEIGHTS, *(weights for _, weights in words)])
        _save(folder, weights, np.concatenate([_NO_INDICES, *(word_ids for word_ids, _ in words)]), ends)

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Merge the parts and transpose documents × vocabulary to vocabulary × documents."""
        from scipy.sparse import csr_array, vstack

        width = max(len(self._model.tokenizer), int(self._model.get_embedding_dimension() or 0))
        rows = []
        for part in parts:
            weights, indices, ends = _arrays(part)
            rows.append(csr_array((weights, indices, ends), shape=(len(ends) - 1, width)))
        columns = vstack(rows, format="csr").tocsc()
        _save(folder, columns.data, columns.indices.astype(np.int32), columns.indptr.astype(np.int64))

    def load(self, folder: Path, documents: Documents) -> "SpladeIndex":
        """Open what `merge` wrote, memory-mapped. ValueError if the arrays do not fit together."""
        weights, indices, ends = _arrays(folder)
        if not len(weights) == len(indices) == ends[-1]:
            raise ValueError(f"{WEIGHTS}, {DOCUMENTS} and {ENDS} do not fit together")
        return SpladeIndex(self, weights, indices, ends, len(documents))

    def _encode(self, texts: list[str], length: int | None, task: Literal["query", "document"]) -> list[Words]:
        self._model.max_seq_length = cast("int", length or self.recipe.max_length)  # None is the model's own limit
        encoded = self._model.encode(
            texts,
            batch_size=_BATCH,
            show_progress_bar=False,
            convert_to_sparse_tensor=False,
            save_to_cpu=True,
            task=task,
        )
        rows = finished(encoded.float().numpy(), self.recipe)
        return [(word_ids.astype(np.int32), row[word_ids]) for row in rows for word_ids in [np.flatnonzero(row)]]


class SpladeIndex:
    """Ranks probes by the inner product of Σ wᵢ·s(tᵢ) with every document's words."""

    def __init__(
        self,
        encoder: Splade,
        weights: npt.NDArray[np.float32],
        documents: npt.NDArray[np.int32],
        ends: npt.NDArray[np.int64],
        size: int,
    ) -> None:
        """The postings of `merge`; `size` is the number of documents."""
        self._encoder = encoder
        self._weights, self._documents, self._ends, self._size = weights, documents, ends, size
        self._cache: ByteCache[str, Words] = ByteCache(_CACHE_BYTES, _bytes)
        self.caches = {"embeddings": self._cache}

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents; every distinct text is encoded once.

        As with BM25 only documents with a score above 0 are ranked, and a blank text adds nothing.
        """
        texts = [term.text for probe in probes for term in probe.terms if is_effective(term)]
        embeddings = remembered(self._cache, texts, self._encoder.queries)
        rankings = []
        for probe, limit in zip(probes, limits, strict=True):
            query: npt.NDArray[np.float64] = np.zeros(len(self._ends) - 1)
            for term in filter(is_effective, probe.terms):
                word_ids, weights = embeddings[term.text]
                query[word_ids] += term.weight * weights.astype(np.float64)
            rankings.append(self._best(query, limit))
        return rankings

    def work(self, probe: Probe) -> int:
        """That of the encoder."""
        return query_work(self._encoder.recipe, probe)

    def truncated(self, probe: Probe) -> int:
        """How many texts of a probe are longer than a query may be."""
        return self._encoder.truncated([term.text for term in filter(is_effective, probe.terms)])

    def _best(self, query: npt.NDArray[np.float64], limit: int) -> Scored:
        scores: npt.NDArray[np.float64] = np.zeros(self._size)
        for word_id in np.flatnonzero(query).tolist():
            part = slice(self._ends[word_id], self._ends[word_id + 1])
            scores[self._documents[part]] += query[word_id] * self._weights[part]
        matches = np.flatnonzero(scores > 0)
        return best(matches, scores[matches], limit) if len(matches) else NOTHING


def _bytes(text: str, words: Words) -> int:
    return sys.getsizeof(text) + sum(sys.getsizeof(array) for array in words)


def _save(
    folder: Path, weights: npt.NDArray[np.float32], indices: npt.NDArray[np.int32], ends: npt.NDArray[np.int64]
) -> None:
    for name, array in ((WEIGHTS, weights), (DOCUMENTS, indices), (ENDS, ends)):
        np.save(folder / name, array, allow_pickle=False)


def _arrays(folder: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    weights, indices, ends = (
        np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (WEIGHTS, DOCUMENTS, ENDS)
    )
    return weights, indices, ends
