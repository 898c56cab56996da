"""Documents held by an OpenSearch-compatible service: BM25 by `match` queries, dense retrievers by `knn`.

Rankings follow the same rules as in an index of this machine. A BM25 probe scores Σ wᵢ·BM25(tᵢ): terms with weights
above 0 are one boosted query; terms with weights below 0, which such services refuse as boosts, are scored for the
documents found and subtracted, and more documents are fetched until no other one can belong to the ranking. A dense
probe is one vector Σ wᵢ·e(tᵢ), and the service's scores are turned back into inner products; which neighbours it finds
is its own approximation.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..configs.schema import RemoteConfig
from ..data.types import Document
from ..errors import ConfigError, IndexFolderError
from .caches import ByteCache, remembered
from .documents import Documents
from .encoder import Encoder, Vectors
from .fusion import NOTHING, Scored, best
from .kinds import Progress
from .opensearch import Hits, OpenSearch, Query
from .plan import Probe, Term, speaks
from .recipes import RetrieverRecipe

log = logging.getLogger(__name__)

_SPARE = 16
_GROWTH = 4
_CACHE_BYTES = 128 * 2**20


class Remote:
    """A described index of a service and, for dense retrievers, the encoder of queries."""

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
        """Ask the service about its index, and load the encoder of a dense retriever.

        Raises EnvironmentUnavailableError where the service does not answer, ConfigError where it refuses access or the
        retriever is neither BM25 nor dense, IndexFolderError where it has no such index.
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
        """The retriever. IndexFolderError where the service holds another number of documents than the corpus."""
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

    def __init__(self, service: OpenSearch, config: RemoteConfig, places: Documents) -> None:
        """`places`: the documents, for the position of an id."""
        self._service, self._config, self._places = service, config, places

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents with a score above 0."""
        rankings = [NOTHING] * len(probes)
        window = min(self._config.window, len(self._places))
        sizes = {
            row: min(limits[row] + _SPARE, window)
            for row, probe in enumerate(probes)
            if any(speaks(term) and term.weight > 0 for term in probe.terms)
        }
        while sizes:
            positive = [(self._query(probes[row].terms, 1), size) for row, size in sizes.items()]
            found = dict(zip(sizes, self._service.search(positive), strict=True))
            against = self._against({row: (probes[row], hits) for row, hits in found.items()})
            more: dict[int, int] = {}
            for row, size in sizes.items():
                hits = found[row]
                scores = np.array([score - against[row].get(id_, 0.0) for id_, score in hits])
                above = np.flatnonzero(scores > 0)
                rankings[row] = best(_placed(hits, self._places, self._config)[above], scores[above], limits[row])
                if len(hits) == size and not _complete(rankings[row], limits[row], bound=hits[-1][1]):
                    if size < window:
                        more[row] = min(_GROWTH * size, window)
                    elif size < len(self._places):
                        log.warning("a ranking was cut at env.remote.window, %d candidates; raise it", window)
            sizes = more
        return rankings

    def _against(self, found: Mapping[int, tuple[Probe, Hits]]) -> dict[int, dict[str, float]]:
        """By row, how much the terms with weights below 0 take from each document found."""
        asked: dict[int, tuple[Query, int]] = {}
        for row, (probe, hits) in found.items():
            if hits and any(speaks(term) and term.weight < 0 for term in probe.terms):
                only = {"ids": {"values": [id_ for id_, _ in hits]}}
                query = self._query(probe.terms, -1)
                asked[row] = ({"bool": {"filter": [only], "must": [query]}}, len(hits))
        answers = dict(zip(asked, self._service.search(list(asked.values())), strict=True)) if asked else {}
        return {row: dict(answers.get(row, [])) for row in found}

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
    """Ranks probes by the inner product with Σ wᵢ·e(tᵢ), among the neighbours that the service finds."""

    def __init__(self, service: OpenSearch, config: RemoteConfig, places: Documents, encoder: Encoder) -> None:
        """`places`: the documents, for the position of an id."""
        self._service, self._config, self._places, self._encoder = service, config, places, encoder
        self._known: ByteCache[str, Vectors] = ByteCache(
            _CACHE_BYTES, lambda text, vector: sys.getsizeof(text) + vector.nbytes
        )
        self.caches = {"embeddings": self._known}

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents; one whose vector is 0 has none."""
        texts = [term.text for probe in probes for term in filter(speaks, probe.terms)]
        known = remembered(self._known, texts, lambda new: [row.copy() for row in self._encoder.queries(new)])
        asked: dict[int, tuple[Query, int]] = {}
        lengths: dict[int, float] = {}
        for row, (probe, limit) in enumerate(zip(probes, limits, strict=True)):
            vector: npt.NDArray[np.float64] = np.zeros(self._encoder.dimension)
            for term in filter(speaks, probe.terms):
                vector += term.weight * known[term.text].astype(np.float64)
            if vector.any():
                size = min(limit + _SPARE, self._config.window, len(self._places))
                near = {"vector": vector.astype(np.float32).tolist(), "k": size}
                asked[row] = ({"knn": {self._config.vector_field: near}}, size)
                lengths[row] = float(np.linalg.norm(vector))
        rankings = [NOTHING] * len(probes)
        for row, hits in zip(asked, self._service.search(list(asked.values())), strict=True):
            scores = np.array([self._product(score, lengths[row]) for _, score in hits])
            rankings[row] = best(_placed(hits, self._places, self._config), scores, limits[row])
        return rankings

    def _product(self, score: float, length: float) -> float:
        """The inner product behind a score: 1 + x or 1 / (1 − x) for innerproduct, (1 + cos) / 2 for cosinesimil."""
        if self._config.space == "cosinesimil":
            return (2 * score - 1) * length
        return score - 1 if score >= 1 else 1 - 1 / score


def _complete(ranking: Scored, limit: int, bound: float) -> bool:
    """Whether no document that scores at most `bound` can change the ranking."""
    return len(ranking.scores) == limit and bool(ranking.scores[-1] > bound)


def _placed(hits: Hits, places: Documents, config: RemoteConfig) -> npt.NDArray[np.int64]:
    try:
        return np.array([places.position(id_) for id_, _ in hits], dtype=np.int64)
    except KeyError as error:
        raise IndexFolderError(
            f"{config.index!r} at {config.url} holds a document {error}, which the corpus does not have. "
            "Fill it with this corpus, under its ids."
        ) from None
