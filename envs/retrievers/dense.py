"""Dense retrieval: a sentence encoder, one vector per document, exact inner-product search with FAISS.

A probe is the vector Σ wᵢ·e(tᵢ), e being the recipe's embedding of the text in the query template, of length 1 if the
similarity is cos. The sum is not normalised: that would divide every score of the probe by the same number, and `sum`
and `max` fusion would lose how far the terms of a probe agree.
"""

import sys
from collections.abc import Sequence, Sized
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...configs.schema import VectorsConfig
from ...data.types import Document
from ...errors import ModelError
from ...logs import Progress
from ..index.arrays import NpyWriter, mapped
from ..plan import Probe, speaks
from ..server.cache import ByteCache, remembered
from . import nearest
from .encoder import Encoder as Encoder
from .encoder import Vectors
from .fusion import NOTHING, Scored, best
from .nearest import VectorStore
from .recipes import RetrieverRecipe

VECTORS = "vectors.npy"
_SPARE = 16
_CACHE_BYTES = 128 * 2**20


class ProbeEncoder:
    """The vectors of probes; embeddings of their texts are cached."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.cache: ByteCache[str, Vectors] = ByteCache(
            _CACHE_BYTES, lambda text, vector: sys.getsizeof(text) + sys.getsizeof(vector)
        )
        """Vectors of query texts, as returned by the encoder."""

    def vectors(self, probes: Sequence[Probe]) -> npt.NDArray[np.float64]:
        """Σ wᵢ·e(tᵢ) of each probe, shape (probes, d), 0 for blank texts; every distinct text is embedded once."""
        texts = (term.text for probe in probes for term in filter(speaks, probe.terms))
        # a row of the batch would keep the whole batch in memory
        embedded = remembered(self.cache, texts, lambda new: [row.copy() for row in self._encoder.queries(new)])
        sums = np.zeros((len(probes), self._encoder.dimension), dtype=np.float64)
        for row, probe in enumerate(probes):
            for term in filter(speaks, probe.terms):
                sums[row] += term.weight * embedded[term.text].astype(np.float64)
        return sums

    def truncated(self, probe: Probe) -> int:
        """How many texts of a probe are longer than a query may be."""
        return self._encoder.truncated([term.text for term in filter(speaks, probe.terms)])


class Dense:
    """Ranks probes by the inner product of Σ wᵢ·e(tᵢ) with every document vector."""

    def __init__(self, encoder: Encoder, vectors: nearest.Vectors, search: nearest.Nearest | None = None) -> None:
        """`vectors`: (documents, d), float32 or float16, may be memory-mapped. `search` None is exact search."""
        self._probe_encoder = ProbeEncoder(encoder)
        self._vectors = vectors
        self._search = search or nearest.flat(vectors)
        self.embeddings = self._probe_encoder.cache
        self.caches = {"embeddings": self.embeddings}
        self.truncated = self._probe_encoder.truncated

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents.

        A probe whose vector is 0 has an empty ranking. Scores are inner products summed in float64 in a fixed order, so
        that equal vectors get equal scores in any batch.
        """
        sums = self._probe_encoder.vectors(probes)
        rankings = [NOTHING] * len(probes)
        rows: list[int] = np.flatnonzero(sums.any(axis=1)).tolist()
        if not rows:
            return rankings
        neighbours = self._search(sums[rows].astype(np.float32), max(limits[row] for row in rows) + _SPARE)
        for row, candidates in zip(rows, neighbours, strict=True):
            valid = candidates[candidates >= 0]
            scores = np.einsum("nd,d->n", self._vectors[valid].astype(np.float64), sums[row])
            rankings[row] = best(valid, scores.astype(np.float32).astype(np.float64), limits[row])
        return rankings


class DenseKind:
    """Dense retrieval with the vectors kept as configured. The encoder is loaded when needed, not for a merge."""

    def __init__(self, recipe: RetrieverRecipe, config: VectorsConfig) -> None:
        """ModelError if FAISS is missing."""
        nearest.import_faiss()
        self._recipe, self._config = recipe, config
        self.vectors: VectorStore | None = None
        """How `merge` kept the vectors."""

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of the recipe. Raises as `Encoder.open`."""
        return Encoder.open(self._recipe)

    @property
    def recipe(self) -> RetrieverRecipe:
        """The recipe, filled in by the encoder."""
        return self.encoder.recipe

    @property
    def fingerprint(self) -> str:
        """That of the encoder."""
        return self.encoder.fingerprint

    def store(self, documents: int, dimension: int) -> VectorStore:
        """How so many vectors are kept. Raises ConfigError if the settings do not fit them, or memory is too small."""
        store = nearest.vector_store(self._config, dimension, documents)
        nearest.check_memory(store, documents, self._config)
        return store

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None = None) -> None:
        """Embed a block of the corpus. ModelError if the vectors overflow their type."""
        texts, dtype = [self.recipe.content_of(document) for document in documents], self._config.dtype
        with np.errstate(over="ignore"):
            vectors = self.encoder.documents(texts, progress).astype(dtype)
        if not np.isfinite(vectors).all():
            raise ModelError(
                f"retriever {self.recipe.name!r} gives embeddings too large for {dtype}. Use env.vectors.dtype=float32."
            )
        np.save(folder / VECTORS, vectors)

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write all vectors in corpus order, and the FAISS index unless the search is flat."""
        pieces = [mapped(part / VECTORS) for part in parts]
        self.vectors = store = self.store(sum(map(len, pieces)), pieces[0].shape[1])
        with NpyWriter(folder / VECTORS, store.dtype, (sum(map(len, pieces)), store.dimension)) as file:
            for piece in pieces:
                file.write(piece)
        nearest.build(folder, mapped(folder / VECTORS), store, self._config)

    def load(self, folder: Path, documents: Sized) -> Dense:
        """Open what `merge` wrote; vectors stay on disk (memory-mapped)."""
        store = nearest.vector_store(self._config, self.encoder.dimension, len(documents))
        vectors = mapped(folder / VECTORS)
        if vectors.dtype.name != store.dtype or vectors.shape[1:] != (store.dimension,):
            raise ValueError(f"{VECTORS} holds {vectors.dtype} of shape {vectors.shape}; expected {store}")
        return Dense(self.encoder, vectors, nearest.open_nearest(folder, vectors, store, self._config))
