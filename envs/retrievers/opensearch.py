"""Retrieval from an OpenSearch-compatible service: BM25 with `match` queries, dense retrievers with `knn`.

Rankings follow the same rules as with a local index. A BM25 probe scores Σ wᵢ·BM25(tᵢ): terms with positive weights
form one boosted query. Such services refuse negative boosts, so terms with negative weights are scored separately for
the retrieved documents and subtracted, and more documents are fetched until no other one can enter the ranking. A dense
probe is one vector Σ wᵢ·e(tᵢ), and the service's scores are converted back into inner products; the neighbours are
those of the service's own approximate search.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...configs.schema import RemoteConfig
from ...data.types import Document
from ...errors import ConfigError, IndexFolderError
from ..index.documents import Documents
from ..plan import Probe, Term, speaks
from ..server.cache import ByteCache, remembered
from .base import Progress
from .encoder import Encoder, Vectors
from .fusion import NOTHING, Scored, best
from .opensearch_http import Hits, OpenSearch, Query
from .recipes import RetrieverRecipe

log = logging.getLogger(__name__)

_SPARE = 16
_GROWTH = 4
_CACHE_BYTES = 128 * 2**20


class Remote:
    """An index of a service and, for dense retrievers, the query encoder."""

    def __init__(
        self, config: RemoteConfig, recipe: RetrieverRecipe, service: OpenSearch, encoder: Encoder | None
    ) -> None:
        described = service.describe()
        self.recipe = recipe
        self.count = service.count()
        self._config, self._service, self._encoder = config, service, encoder
        settings = described.get("settings", {}).get("index", {})
        content = {
            "uuid": settings.get("uuid"),
            "analysis": settings.get("analysis"),
            "similarity": settings.get("similarity"),
            "mappings": described.get("mappings"),
            "count": self.count,
            "fields": config.fields if encoder is None else [config.vector_field, config.space],
            "window": config.window,
            "encoder": encoder.fingerprint if encoder else None,
        }
        self.fingerprint = f"remote {hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"

    @classmethod
    def open(cls, config: RemoteConfig, recipe: RetrieverRecipe) -> "Remote":
        """Get the description of the index from the service, and load the encoder of a dense retriever.

        Raises EnvironmentUnavailableError if the service does not answer, ConfigError if it refuses access or the
        retriever is neither BM25 nor dense, IndexFolderError if it has no such index.
        """
        if recipe.kind not in ("bm25", "dense"):
            raise ConfigError(
                f"env.remote is given, but retriever {recipe.name!r} is {recipe.kind}; a remote service searches for "
                "bm25 and dense retrievers. Remove env.remote, or give it to the members of a hybrid."
            )
        encoder = Encoder.open(recipe) if recipe.kind == "dense" else None
        return cls(config, encoder.recipe if encoder else recipe, OpenSearch(config), encoder)

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None) -> None:
        """Nothing: the service holds the documents."""

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Nothing, for the same reason."""

    def load(self, folder: Path, documents: Documents) -> "RemoteWords | RemoteVectors":
        """The retriever. IndexFolderError if service and corpus have different numbers of documents."""
        if self.count != len(documents):
            raise IndexFolderError(
                f"{self._config.index!r} at {self._config.url} holds {self.count} documents; the corpus "
                f"has {len(documents)}. Fill it with this corpus, under its ids."
            )
        if self._encoder is None:
            return RemoteWords(self._service, self._config, documents)
        return RemoteVectors(self._service, self._config, documents, self._encoder)


class RemoteWords:
    """Ranks probes by Σ wᵢ·BM25(tᵢ) with `match` queries."""

    def __init__(self, service: OpenSearch, config: RemoteConfig, documents: Documents) -> None:
        """`documents` gives the position of an id."""
        self._service, self._config, self._documents = service, config, documents

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents with a score above 0."""
        rankings = [NOTHING] * len(probes)
        window = min(self._config.window, len(self._documents))
        sizes = {
            row: min(limits[row] + _SPARE, window)
            for row, probe in enumerate(probes)
            if any(speaks(term) and term.weight > 0 for term in probe.terms)
        }
        while sizes:
            positive = [(self._query(probes[row].terms, 1), size) for row, size in sizes.items()]
            hits_by_row = dict(zip(sizes, self._service.search(positive), strict=True))
            penalties = self._penalties({row: (probes[row], hits) for row, hits in hits_by_row.items()})
            larger: dict[int, int] = {}
            for row, size in sizes.items():
                hits = hits_by_row[row]
                scores = np.array([score - penalties[row].get(id_, 0.0) for id_, score in hits])
                above = np.flatnonzero(scores > 0)
                rankings[row] = best(_positions(hits, self._documents, self._config)[above], scores[above], limits[row])
                if len(hits) == size and not _complete(rankings[row], limits[row], bound=hits[-1][1]):
                    if size < window:
                        larger[row] = min(_GROWTH * size, window)
                    elif size < len(self._documents):
                        log.warning("a ranking was cut at env.remote.window, %d candidates; raise it", window)
            sizes = larger
        return rankings

    def _penalties(self, hits_by_row: Mapping[int, tuple[Probe, Hits]]) -> dict[int, dict[str, float]]:
        """By row and document id, the score that the terms with negative weights subtract from each hit."""
        queries: dict[int, tuple[Query, int]] = {}
        for row, (probe, hits) in hits_by_row.items():
            if hits and any(speaks(term) and term.weight < 0 for term in probe.terms):
                id_filter = {"ids": {"values": [id_ for id_, _ in hits]}}
                query = self._query(probe.terms, -1)
                queries[row] = ({"bool": {"filter": [id_filter], "must": [query]}}, len(hits))
        answers = dict(zip(queries, self._service.search(list(queries.values())), strict=True)) if queries else {}
        return {row: dict(answers.get(row, [])) for row in hits_by_row}

    def _query(self, terms: Sequence[Term], sign: int) -> Query:
        return {
            "bool": {
                "should": [
                    {"match": {field: {"query": term.text, "boost": sign * term.weight}}}
                    for term in terms
                    if speaks(term) and sign * term.weight > 0
                    for field in self._config.fields
                ]
            }
        }


class RemoteVectors:
    """Ranks the neighbours that the service returns by the inner product with Σ wᵢ·e(tᵢ)."""

    def __init__(self, service: OpenSearch, config: RemoteConfig, documents: Documents, encoder: Encoder) -> None:
        """`documents` gives the position of an id."""
        self._service, self._config, self._documents, self._encoder = service, config, documents, encoder
        self._cache: ByteCache[str, Vectors] = ByteCache(
            _CACHE_BYTES, lambda text, vector: sys.getsizeof(text) + vector.nbytes
        )
        self.caches = {"embeddings": self._cache}

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents; empty if its vector is 0."""
        texts = [term.text for probe in probes for term in filter(speaks, probe.terms)]
        embeddings = remembered(self._cache, texts, lambda new: [row.copy() for row in self._encoder.queries(new)])
        queries: dict[int, tuple[Query, int]] = {}
        lengths: dict[int, float] = {}
        for row, (probe, limit) in enumerate(zip(probes, limits, strict=True)):
            vector: npt.NDArray[np.float64] = np.zeros(self._encoder.dimension)
            for term in filter(speaks, probe.terms):
                vector += term.weight * embeddings[term.text].astype(np.float64)
            if vector.any():
                size = min(limit + _SPARE, self._config.window, len(self._documents))
                knn = {"vector": vector.astype(np.float32).tolist(), "k": size}
                queries[row] = ({"knn": {self._config.vector_field: knn}}, size)
                lengths[row] = float(np.linalg.norm(vector))
        rankings = [NOTHING] * len(probes)
        for row, hits in zip(queries, self._service.search(list(queries.values())), strict=True):
            scores = np.array([self._product(score, lengths[row]) for _, score in hits])
            rankings[row] = best(_positions(hits, self._documents, self._config), scores, limits[row])
        return rankings

    def _product(self, score: float, length: float) -> float:
        """The inner product x of a score: 1 + x or 1 / (1 − x) for innerproduct, (1 + cos) / 2 for cosinesimil."""
        if self._config.space == "cosinesimil":
            return (2 * score - 1) * length
        return score - 1 if score >= 1 else 1 - 1 / score


def _complete(ranking: Scored, limit: int, bound: float) -> bool:
    """Whether no document that scores at most `bound` can change the ranking."""
    return len(ranking.scores) == limit and bool(ranking.scores[-1] > bound)


def _positions(hits: Hits, documents: Documents, config: RemoteConfig) -> npt.NDArray[np.int64]:
    try:
        return np.array([documents.position(id_) for id_, _ in hits], dtype=np.int64)
    except KeyError as error:
        raise IndexFolderError(
            f"{config.index!r} at {config.url} holds a document {error}, which the corpus does not have. "
            "Fill it with this corpus, under its ids."
        ) from None
