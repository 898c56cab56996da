"""Dense retrieval: a sentence encoder, one vector per document, inner-product search with FAISS.

A probe is the vector Σ wᵢ·e(tᵢ), e being the embedding of the text after the query prompt, of length 1 if the
similarity is cos. The sum is not normalised: that would divide every score of the probe by the same number, and `sum`
and `max` fusion would lose how far the terms of a probe agree.
"""

import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Sized
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from ...data.types import Document
from ...errors import ModelError
from ...logs import Progress
from ..index import mapped, whole
from ..plan import Probe, is_effective
from ..presets import RetrieverPreset
from . import nearest
from .base import NOTHING, SPARE, Retriever, RetrieverFactory, Scored, best, remembered
from .encoder import Encoder, Vectors

VECTORS = "vectors.npy"
_CACHE_BYTES = 128 * 2**20

Unranked = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Corpus positions and their scores, both of shape (n,), in any order."""


class VectorRetriever(Retriever):
    """Ranks the candidates of a search by their inner products with the vectors of the probes."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._cache: LRUCache[str, Vectors] = LRUCache(_CACHE_BYTES, sys.getsizeof)
        """Vectors of query texts, as returned by the encoder."""

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents; empty if its vector is 0."""
        sums = self._vectors_of(probes)
        rankings = [NOTHING] * len(probes)
        rows: list[int] = np.flatnonzero(sums.any(axis=1)).tolist()
        if rows:
            searched = self._candidates(sums[rows], [limits[row] for row in rows])
            for row, (documents, scores) in zip(rows, searched, strict=True):
                rankings[row] = best(documents, scores, limits[row])
        return rankings

    def truncated(self, probe: Probe) -> int:
        """How many texts of a probe are longer than a query may be."""
        return self._encoder.truncated([term.text for term in filter(is_effective, probe.terms)])

    @abstractmethod
    def _candidates(self, vectors: npt.NDArray[np.float64], limits: Sequence[int]) -> Iterable[Unranked]:
        """The candidates of each vector of (rows, d), of which at most limits[i] are kept."""

    def _vectors_of(self, probes: Sequence[Probe]) -> npt.NDArray[np.float64]:
        """Σ wᵢ·e(tᵢ) of each probe, shape (probes, d), 0 for blank texts; every distinct text is embedded once."""
        texts = (term.text for probe in probes for term in filter(is_effective, probe.terms))
        # a row of the batch would keep the whole batch in memory
        embedded = remembered(self._cache, texts, lambda new: [row.copy() for row in self._encoder.queries(new)])
        sums = np.zeros((len(probes), self._encoder.dimension), dtype=np.float64)
        for row, probe in enumerate(probes):
            for term in filter(is_effective, probe.terms):
                sums[row] += term.weight * embedded[term.text].astype(np.float64)
        return sums


class Dense(VectorRetriever):
    """Searches every document vector with FAISS and scores the candidates again.

    The second scores are summed in float64 in a fixed order: equal vectors get equal scores in any batch.
    """

    def __init__(self, encoder: Encoder, vectors: nearest.Vectors, search: nearest.Nearest | None = None) -> None:
        """`vectors`: (documents, d), float32 or float16, may be memory-mapped. `search` None is exact search."""
        super().__init__(encoder)
        self._vectors = vectors
        self._search = search or nearest.flat(vectors)

    def _candidates(self, vectors: npt.NDArray[np.float64], limits: Sequence[int]) -> Iterator[Unranked]:
        neighbours = self._search(vectors.astype(np.float32), max(limits) + SPARE)
        for vector, candidates in zip(vectors, neighbours, strict=True):
            valid = candidates[candidates >= 0]
            scores = np.einsum("nd,d->n", self._vectors[valid].astype(np.float64), vector)
            yield valid, scores.astype(np.float32).astype(np.float64)


class DenseFactory(RetrieverFactory):
    """Dense retrieval with the vectors kept as configured. The encoder is loaded when needed, not for a merge."""

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of the preset. Raises as `Encoder`."""
        return Encoder(self._preset)

    @property
    def preset(self) -> RetrieverPreset:
        """That of the encoder."""
        return self.encoder.preset

    @property
    def fingerprint(self) -> str | None:
        """That of the encoder."""
        return self.encoder.fingerprint

    @property
    def settings(self) -> dict[str, object]:
        """With how vectors are stored and searched."""
        vectors = self.config.vectors
        engine = "milvus" if self.config.engine == "milvus" else "faiss"
        return super().settings | {"vectors.dtype": vectors.dtype, "vectors.search": vectors.search, "engine": engine}

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None = None) -> None:
        """Embed a block of the corpus. ModelError if the vectors overflow their type."""
        dtype = self.config.vectors.dtype
        with np.errstate(over="ignore"):
            vectors = self.encoder.documents(documents, progress).astype(dtype)
        if not np.isfinite(vectors).all():
            raise ModelError(
                f"retriever {self._preset.name!r} gives embeddings too large for {dtype}. Use "
                "env.vectors.dtype=float32."
            )
        np.save(folder / VECTORS, vectors)

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write all vectors in corpus order, and the FAISS index unless the search is flat."""
        pieces = [mapped(part / VECTORS) for part in parts]
        header = np.lib.format.header_data_from_array_1_0(pieces[0])
        with (folder / VECTORS).open("wb") as file:  # not a memory map: a full disk would kill the process
            shape = (sum(map(len, pieces)), pieces[0].shape[1])
            np.lib.format.write_array_header_1_0(file, header | {"shape": shape})
            for piece in pieces:
                file.write(np.ascontiguousarray(piece).data)
        nearest.build(folder, mapped(folder / VECTORS), self.config.vectors)

    def load(self, folder: Path, documents: Sized) -> Retriever:
        """Open what `merge` wrote; vectors stay on disk (memory-mapped)."""
        with whole(folder):
            vectors = mapped(folder / VECTORS)
        return Dense(self.encoder, vectors, nearest.open_nearest(folder, vectors, self.config.vectors))
