"""Retrieval from an OpenSearch-compatible service: BM25 with `match` queries, dense retrievers with `knn`.

A BM25 probe is one boosted query, Σ wᵢ·BM25(tᵢ) with the service's own analyser and statistics; it takes no negative
weight. A dense probe is one vector Σ wᵢ·e(tᵢ), negative weights included, and the service's scores are converted back
into inner products. A search returns all its results or raises; a failure never becomes an empty ranking.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from ...configs.environment import EnvironmentConfig, RemoteConfig
from ...errors import ConfigError, EnvironmentUnavailableError, IndexFolderError
from ...sources import optional_packages
from ...storage import data_sha256
from ..index import Documents
from ..plan import Probe, is_effective
from ..presets import RetrieverPreset
from .base import NOTHING, SPARE, Retriever, RetrieverFactory, Scored, SearchedIndex, best, refuse_negative_weights
from .dense import Unranked, VectorRetriever
from .encoder import Encoder

Query = dict[str, object]

AUTH = "QUERYLECT_REMOTE_AUTH"
"""Environment variable with the Authorization header; if it is unset, none is sent."""
TEXT_FIELDS = ("title", "text")
"""The fields that BM25 matches; their scores are summed."""
VECTOR_FIELD = "vector"
"""The field with the document vectors, of the space_type innerproduct."""
_WINDOW = 10_000
"""Most documents of one search (OpenSearch's default index.max_result_window); it refuses to search for more."""
_PER_REQUEST = 64
_SECONDS, _RETRIES = 10, 3


class OpenSearchIndex:
    """One index of a service, through opensearch-py, which repeats requests that get no answer, 429, 502, 503 or 504.

    What fails in the end, or is answered by only a part of the shards, raises EnvironmentUnavailableError.
    """

    def __init__(self, config: RemoteConfig) -> None:
        """Connects at the first request. Raises ConfigError for an unusable URL, and as `optional_packages`."""
        with optional_packages("opensearch"):
            from opensearchpy import OpenSearch, RequestsHttpConnection
        if urlsplit(config.url).scheme not in ("http", "https"):
            raise ConfigError(f"env.remote.url is {config.url!r}; expected http://HOST:PORT or https://HOST:PORT.")
        auth = os.environ.get(AUTH)
        self._config = config
        self._client = OpenSearch(
            [config.url],
            headers={"Authorization": auth} if auth else None,
            connection_class=RequestsHttpConnection,  # honours HTTP_PROXY, HTTPS_PROXY and NO_PROXY
            timeout=_SECONDS,
            max_retries=_RETRIES,
            retry_on_timeout=True,
            retry_on_status=(429, 502, 503, 504),
        )

    def describe(self) -> tuple[dict[str, object], int]:
        """What identifies the index: its settings and mappings; and its number of documents."""
        name = self._config.index
        with self._outages():
            (described,) = self._client.indices.get(index=name).values()
            count = int(self._client.count(index=name)["count"])
        index = described["settings"]["index"]
        identity = {field: index.get(field) for field in ("uuid", "analysis", "similarity")}
        return {**identity, "mappings": described["mappings"]}, count

    def search(self, queries: Sequence[Query], limits: Sequence[int], documents: Documents) -> Iterator[Unranked]:
        """Positions in `documents` and scores of the hits of each query, at most limits[i] and some spare ones, scored
        with the word statistics of the whole index. IndexFolderError for a hit that is not in `documents`."""
        header: dict[str, object] = {
            "index": self._config.index,
            "search_type": "dfs_query_then_fetch",
            "preference": "querylect",
        }
        for start in range(0, len(queries), _PER_REQUEST):
            lines = []
            for query, limit in list(zip(queries, limits, strict=True))[start : start + _PER_REQUEST]:
                lines += [header, {"query": query, "size": _size(limit, documents), "_source": False}]
            with self._outages():
                responses = self._client.msearch(body=lines)["responses"]
                for response in responses:
                    if "error" in response or response["timed_out"] or response["_shards"]["failed"]:
                        details = response.get("error") or response["_shards"]
                        raise EnvironmentUnavailableError(f"{self._config.url} did not search all shards: {details}")
                results = [[(hit["_id"], float(hit["_score"])) for hit in item["hits"]["hits"]] for item in responses]
            for hits in results:
                for name, _ in hits:
                    if name not in documents:
                        raise IndexFolderError(
                            f"{self._config.index!r} at {self._config.url} holds a document {name!r}, which the corpus "
                            "does not have. Fill it with this corpus, under its ids."
                        )
                positions = np.array([documents.position(name) for name, _ in hits], dtype=np.int64)
                yield positions, np.array([score for _, score in hits], dtype=np.float64)

    @contextmanager
    def _outages(self) -> Iterator[None]:
        from opensearchpy import OpenSearchException

        try:
            yield
        except (OpenSearchException, KeyError, TypeError, ValueError) as error:
            raise EnvironmentUnavailableError(
                f"index {self._config.index!r} at {self._config.url} cannot be searched ({error!r}). Check that the "
                f"service of env.remote runs and has that index, and that {AUTH} has the header that it wants."
            ) from error


class OpenSearchFactory(RetrieverFactory):
    """An index of a service, which holds the documents, and, for dense retrievers, the query encoder."""

    def __init__(
        self, preset: RetrieverPreset, config: EnvironmentConfig, members: Sequence[SearchedIndex] = ()
    ) -> None:
        """Get the description of the index from the service, and load the encoder of a dense preset.

        Raises EnvironmentUnavailableError if the service does not answer.
        """
        assert config.remote is not None, "the settings name the service"
        self._remote, self._service = config.remote, OpenSearchIndex(config.remote)
        self._encoder = Encoder(preset) if preset.kind == "dense" else None
        super().__init__(self._encoder.preset if self._encoder else preset, config, members)
        self._identity, self._count = self._service.describe()

    @property
    def fingerprint(self) -> str | None:
        """Of the index of the service and of the encoder."""
        content = {
            **self._identity,
            "count": self._count,
            "fields": TEXT_FIELDS if self._encoder is None else [VECTOR_FIELD],
            "encoder": self._encoder.fingerprint if self._encoder else None,
        }
        return f"remote {data_sha256(content)}"

    def load(self, folder: Path, documents: Documents) -> Retriever:
        """The retriever. IndexFolderError if service and corpus have different numbers of documents."""
        if self._count != len(documents):
            raise IndexFolderError(
                f"{self._remote.index!r} at {self._remote.url} holds {self._count} documents; the corpus "
                f"has {len(documents)}. Fill it with this corpus, under its ids."
            )
        if self._encoder is None:
            return OpenSearchWords(self._service, documents)
        return OpenSearchVectors(self._service, documents, self._encoder)


class OpenSearchWords(Retriever):
    """Ranks probes by Σ wᵢ·BM25(tᵢ), wᵢ > 0, with `match` queries."""

    def __init__(self, service: OpenSearchIndex, documents: Documents) -> None:
        self._service, self._documents = service, documents

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents. RequestError for a negative weight."""
        refuse_negative_weights(probes, "a bm25 of env.remote")
        rows = [row for row, probe in enumerate(probes) if any(map(is_effective, probe.terms))]
        queries = [self._query(probes[row]) for row in rows]
        rankings = [NOTHING] * len(probes)
        hits = self._service.search(queries, [limits[row] for row in rows], self._documents)
        for row, (documents, scores) in zip(rows, hits, strict=True):
            rankings[row] = best(documents, scores, limits[row])
        return rankings

    def _query(self, probe: Probe) -> Query:
        matches = [
            {"match": {field: {"query": term.text, "boost": term.weight}}}
            for term in filter(is_effective, probe.terms)
            for field in TEXT_FIELDS
        ]
        return {"bool": {"should": matches}}


class OpenSearchVectors(VectorRetriever):
    """Searches the approximate neighbours that the service has, and turns its scores into inner products."""

    def __init__(self, service: OpenSearchIndex, documents: Documents, encoder: Encoder) -> None:
        super().__init__(encoder)
        self._service, self._documents = service, documents

    def _candidates(self, vectors: npt.NDArray[np.float64], limits: Sequence[int]) -> Iterator[Unranked]:
        queries: list[Query] = []
        for vector, limit in zip(vectors.astype(np.float32).tolist(), limits, strict=True):
            queries.append({"knn": {VECTOR_FIELD: {"vector": vector, "k": _size(limit, self._documents)}}})
        for positions, scores in self._service.search(queries, limits, self._documents):
            # a score is 1 + x for an inner product x ≥ 0, else 1 / (1 − x)
            yield positions, np.where(scores >= 1, scores - 1, 1 - 1 / scores)


def _size(limit: int, documents: Documents) -> int:
    return min(max(limit, min(limit + SPARE, _WINDOW)), len(documents))
