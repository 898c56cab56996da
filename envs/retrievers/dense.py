"""Dense retrieval: a sentence encoder, one vector per document, exact inner-product search with FAISS.

A probe is the vector Σ wᵢ·e(tᵢ), e being the recipe's embedding of the text in the query template, of length 1 if the
similarity is cos. The sum is not normalised: that would divide every score of the probe by the same number, and `sum`
and `max` fusion would lose how far the terms of a probe agree.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from ...configs.schema import VectorsConfig
from ...errors import ModelError
from ..index.arrays import NpyWriter, mapped
from ..plan import Probe, speaks
from ..server.cache import ByteCache, remembered
from . import nearest
from .encoder import Encoder as Encoder
from .encoder import Vectors
from .fusion import NOTHING, Scored, best
from .nearest import VectorStore
from .recipes import Content

Progress = Callable[[int, int], None]

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


class Dense:
    """Ranks probes by the inner product of Σ wᵢ·e(tᵢ) with every document vector."""

    def __init__(self, encoder: Encoder, vectors: nearest.Vectors, search: nearest.Nearest | None = None) -> None:
        """`vectors`: (documents, d), float32 or float16, may be memory-mapped. `search` None is exact search."""
        self._probe_encoder = ProbeEncoder(encoder)
        self._vectors = vectors
        self._search = search or nearest.flat(vectors, import_faiss())
        self.embeddings = self._probe_encoder.cache
        self.caches = {"embeddings": self.embeddings}

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


def write_part(
    folder: Path, texts: Sequence[Content], encoder: Encoder, dtype: str, progress: Progress | None = None
) -> None:
    """Embed a block of the corpus and write its vectors. ModelError if they overflow `dtype`."""
    with np.errstate(over="ignore"):
        vectors = encoder.documents(texts, progress).astype(dtype)
    if not np.isfinite(vectors).all():
        raise ModelError(
            f"retriever {encoder.recipe.name!r} gives embeddings too large for {dtype}. Use env.vectors.dtype=float32."
        )
    np.save(folder / VECTORS, vectors)


def dimension_of(part: Path) -> int:
    """The dimension of the vectors of a part."""
    return int(mapped(part / VECTORS).shape[1])


def merge(parts: Sequence[Path], folder: Path, store: VectorStore, config: VectorsConfig) -> None:
    """Write what `load` needs: all vectors in corpus order, and the FAISS index unless the search is flat."""
    pieces = [mapped(part / VECTORS) for part in parts]
    with NpyWriter(folder / VECTORS, store.dtype, (sum(map(len, pieces)), store.dimension)) as file:
        for piece in pieces:
            file.write(piece)
    nearest.build(folder, mapped(folder / VECTORS), store, config, import_faiss())


def load(folder: Path, encoder: Encoder, store: VectorStore, config: VectorsConfig) -> Dense:
    """Open what `merge` wrote; vectors stay on disk (memory-mapped)."""
    vectors = mapped(folder / VECTORS)
    if vectors.dtype.name != store.dtype or vectors.shape[1:] != (encoder.dimension,):
        raise ValueError(f"{VECTORS} holds {vectors.dtype} of shape {vectors.shape}; expected {store}")
    return Dense(encoder, vectors, nearest.open_nearest(folder, vectors, store, config, import_faiss()))


def import_faiss() -> ModuleType:
    """The faiss module. If it is missing, ModelError names the extra that installs it."""
    try:
        import faiss
    except ImportError as error:
        raise ModelError(
            "dense retrievers search with FAISS, which is not installed. Install it with "
            '`pip install "querylect[cpu]"`, or `pip install "querylect[gpu]"` on a machine with a CUDA GPU.'
        ) from error
    return faiss
