"""Retrieval from an OpenSearch-compatible service: BM25 with `match` queries, dense retrievers with `knn`.

Rankings follow the same rules as with a local index. A BM25 probe scores Σ wᵢ·BM25(tᵢ): terms with positive weights
form one boosted query. Such services refuse negative boosts, so terms with negative weights are scored separately for
the retrieved documents and subtracted, and more documents are fetched until no other one can enter the ranking. A dense
probe is one vector Σ wᵢ·e(tᵢ), and the service's scores are converted back into inner products; the neighbours are
those of the service's own approximate search.

A search returns all its results or raises; a failure never becomes an empty ranking.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import HttpUrl

from ...configs.environment import RemoteConfig
from ...errors import ConfigError, EnvironmentUnavailableError, IndexFolderError, RequestError
from ...sources import optional_packages
from ...storage import data_sha256
from ..credentials import secret_in
from ..index.documents import Documents
from ..plan import Probe, Term, is_effective
from ..recipes import RetrieverRecipe
from .base import WithoutFiles
from .candidates import SPARE, Candidates, rank_candidates
from .dense import Unranked, VectorRetriever
from .encoder import Encoder
from .fusion import NOTHING, Scored

if TYPE_CHECKING:
    from requests import PreparedRequest

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Query = dict[str, object]
Hits = list[tuple[str, float]]
"""(id, score), best first."""

_PER_REQUEST = 64
_MAX_CHARS = 300
_BUSY = {408, 429}


class _Incomplete(Exception):
    """One attempt without a complete answer."""


def _no_failed_attempt(record: logging.LogRecord) -> bool:
    """Leaves out opensearch-py's warning and traceback for each failed attempt; RemoteIndex reports the last one."""
    return record.funcName != "log_request_fail"


class RemoteIndex:
    """One index of a service, through opensearch-py.

    No connection, a timeout, 408, 429, 5xx, a reply that is not JSON, and a reply from only a part of the shards are
    retried until the deadline and then raise EnvironmentUnavailableError; other errors of the service raise at once.
    """

    def __init__(self, config: RemoteConfig) -> None:
        """Connects at the first request. Raises ConfigError for an unusable URL, and as `optional_packages`."""
        with optional_packages("opensearch"):
            from opensearchpy import OpenSearch, RequestsHttpConnection
        try:
            url = HttpUrl(config.url)
        except ValueError as error:
            raise ConfigError(
                f"env.remote.url is {config.url!r}; expected http://HOST:PORT or https://HOST:PORT."
            ) from error
        if url.username or url.password:
            raise ConfigError(
                "env.remote.url holds a user name or password. Put the Authorization header into the environment "
                f"variable {config.auth_env} instead (env.remote.auth_env)."
            )
        auth = secret_in(config.auth_env)

        def authorize(request: "PreparedRequest") -> "PreparedRequest":
            """Without it, requests would prefer a password of ~/.netrc."""
            if auth:
                request.headers["Authorization"] = auth
            return request

        self._config = config
        self._client = OpenSearch(
            [{"host": (url.host or "").strip("[]"), "port": url.port, "url_prefix": (url.path or "").strip("/")}],
            use_ssl=url.scheme == "https",
            http_auth=authorize,
            connection_class=RequestsHttpConnection,  # honours HTTP_PROXY, HTTPS_PROXY and NO_PROXY
            timeout=config.timeout,
            max_retries=0,  # they follow at once and without a deadline; _complete_answer waits and has one
        )
        logging.getLogger("opensearch").addFilter(_no_failed_attempt)

    def describe(self) -> dict[str, dict[str, object]]:
        """Settings and mappings of the index, under `settings` and `mappings`."""
        name = self._config.index
        described = self._complete_answer(
            f"GET /{name}", lambda: [dict(value) for value in dict(self._client.indices.get(index=name)).values()]
        )
        if len(described) != 1:
            raise ConfigError(
                f"env.remote.index {name!r} stands for {len(described)} indexes at {self._config.url}; expected one. "
                "Name one index, or an alias of one."
            )
        return described[0]

    def count(self) -> int:
        """Number of documents in the index."""
        name = self._config.index
        return self._complete_answer(f"POST /{name}/_count", lambda: int(self._client.count(index=name)["count"]))

    def search(self, queries: Sequence[tuple[Query, int]]) -> list[Hits]:
        """The hits of each (query, number of hits), scored with the word statistics of the whole index."""
        header: dict[str, object] = {
            "index": self._config.index,
            "search_type": "dfs_query_then_fetch",
            "preference": "querylect",
        }
        bodies: list[dict[str, object]] = [{"query": query, "size": size, "_source": False} for query, size in queries]
        results: list[Hits] = []
        for start in range(0, len(bodies), _PER_REQUEST):
            lines = [line for body in bodies[start : start + _PER_REQUEST] for line in (header, body)]
            results += self._complete_answer("POST /_msearch", partial(self._search, lines))
        return results

    def _search(self, lines: list[dict[str, object]]) -> list[Hits]:
        responses = [dict(response) for response in self._client.msearch(body=lines)["responses"]]
        if 2 * len(responses) != len(lines):
            raise _Incomplete(f"{len(responses)} answers to {len(lines) // 2} searches")
        for response in responses:
            if "error" in response:
                raise self._failure(response.get("status", 200), json.dumps(response["error"]))
            if response.get("timed_out") or response.get("_shards", {}).get("failed"):
                raise _Incomplete(f"only a part of the shards answered: {json.dumps(response.get('_shards'))}")
        return [[(hit["_id"], float(hit["_score"])) for hit in response["hits"]["hits"]] for response in responses]

    def _complete_answer(self, request: str, ask: Callable[[], Answer]) -> Answer:
        """What `ask` returns, repeated with growing waits until the deadline while answers are incomplete."""
        from tenacity import Retrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

        attempts = Retrying(
            retry=retry_if_exception_type(_Incomplete),
            wait=wait_random_exponential(multiplier=0.1, max=5),
            stop=stop_before_delay(self._config.deadline),
            reraise=True,
        ).wraps(self._attempt)
        try:
            return attempts(ask)
        except _Incomplete as error:
            raise EnvironmentUnavailableError(
                f"{self._config.url} did not answer {request} completely within {self._config.deadline:g} s; the last "
                f"attempt: {str(error)[:_MAX_CHARS]}. Check that the service of env.remote runs and has room, or raise "
                "env.remote.deadline."
            ) from error

    def _attempt(self, ask: Callable[[], Answer]) -> Answer:
        from opensearchpy import SerializationError, TransportError

        try:
            return ask()
        except TransportError as error:
            detail = json.dumps(error.info) if isinstance(error.info, dict) else error.error
            raise self._failure(error.status_code, detail) from error
        except (SerializationError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise _Incomplete(f"an answer in another form ({error!r})") from error

    def _failure(self, status: int | str, detail: str) -> Exception:
        """The exception for an error of the service; its status is a word if no answer came."""
        if isinstance(status, str) or status in _BUSY or status >= 500:
            return _Incomplete(f"status {status}: {detail}")
        if status in (401, 403):
            return ConfigError(
                f"{self._config.url} refuses access (HTTP {status}). Put the Authorization header that it wants into "
                f"the environment variable {self._config.auth_env} (env.remote.auth_env)."
            )
        if status == 404:
            return IndexFolderError(
                f"{self._config.url} has no index {self._config.index!r}. Fill it with the corpus, or correct "
                "env.remote.index."
            )
        return RequestError(f"{self._config.url} refuses the request (status {status}): {detail[:_MAX_CHARS]}")


class Remote(WithoutFiles):
    """An index of a service, which holds the documents, and, for dense retrievers, the query encoder."""

    def __init__(
        self, config: RemoteConfig, recipe: RetrieverRecipe, service: RemoteIndex, encoder: Encoder | None
    ) -> None:
        described = service.describe()
        self.recipe = recipe
        self.count = service.count()
        self._config, self._service, self._encoder = config, service, encoder
        index = described.get("settings", {}).get("index")
        settings = index if isinstance(index, dict) else {}
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
        self.fingerprint = f"remote {data_sha256(content)}"

    @classmethod
    def open(cls, config: RemoteConfig, recipe: RetrieverRecipe, device: str | None = None) -> "Remote":
        """Get the description of the index from the service, and load the encoder of a dense retriever to a device.

        Raises EnvironmentUnavailableError if the service does not answer, ConfigError if it refuses access or the
        retriever is neither BM25 nor dense, IndexFolderError if it has no such index.
        """
        if recipe.kind not in ("bm25", "dense"):
            raise ConfigError(
                f"env.remote is given, but retriever {recipe.name!r} is {recipe.kind}; a remote service searches for "
                "bm25 and dense retrievers. Remove env.remote, or give it to the members of a hybrid."
            )
        encoder = Encoder.open(recipe, device) if recipe.kind == "dense" else None
        return cls(config, encoder.recipe if encoder else recipe, RemoteIndex(config), encoder)

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

    def __init__(self, service: RemoteIndex, config: RemoteConfig, documents: Documents) -> None:
        """`documents` gives the position of an id."""
        self._service, self._config, self._documents = service, config, documents

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents with a score above 0."""

        def search(sizes: Mapping[int, int]) -> dict[int, Candidates]:
            positive = [(self._query(probes[row].terms, 1), size) for row, size in sizes.items()]
            hits_by_row = dict(zip(sizes, self._service.search(positive), strict=True))
            penalties = self._penalties({row: (probes[row], hits) for row, hits in hits_by_row.items()})
            return {row: self._candidates(hits, penalties[row]) for row, hits in hits_by_row.items()}

        positive_limits = {
            row: limits[row]
            for row, probe in enumerate(probes)
            if any(is_effective(term) and term.weight > 0 for term in probe.terms)
        }
        window = self._config.window
        ranked = rank_candidates(
            positive_limits, window, len(self._documents), search, f"env.remote.window, {window} candidates; raise it"
        )
        return [ranked.get(row, NOTHING) for row in range(len(probes))]

    def _candidates(self, hits: Hits, penalties: Mapping[str, float]) -> Candidates:
        scores = np.array([score - penalties.get(id_, 0.0) for id_, score in hits])
        return Candidates(_positions(hits, self._documents, self._config), scores, hits[-1][1] if hits else 0.0)

    def _penalties(self, hits_by_row: Mapping[int, tuple[Probe, Hits]]) -> dict[int, dict[str, float]]:
        """By row and document id, the score that the terms with negative weights subtract from each hit."""
        queries: dict[int, tuple[Query, int]] = {}
        for row, (probe, hits) in hits_by_row.items():
            if hits and any(is_effective(term) and term.weight < 0 for term in probe.terms):
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
                    if is_effective(term) and sign * term.weight > 0
                    for field in self._config.fields
                ]
            }
        }


class RemoteVectors(VectorRetriever):
    """Searches the approximate neighbours that the service has, and turns its scores into inner products."""

    def __init__(self, service: RemoteIndex, config: RemoteConfig, documents: Documents, encoder: Encoder) -> None:
        """`documents` gives the position of an id."""
        super().__init__(encoder)
        self._service, self._config, self._documents = service, config, documents

    def _candidates(self, vectors: npt.NDArray[np.float64], limits: Sequence[int]) -> Iterator[Unranked]:
        queries: list[tuple[Query, int]] = []
        for vector, limit in zip(vectors, limits, strict=True):
            size = min(limit + SPARE, self._config.window, len(self._documents))
            knn = {"vector": vector.astype(np.float32).tolist(), "k": size}
            queries.append(({"knn": {self._config.vector_field: knn}}, size))
        for vector, hits in zip(vectors, self._service.search(queries), strict=True):
            scores = np.array([self._product(score, float(np.linalg.norm(vector))) for _, score in hits])
            yield _positions(hits, self._documents, self._config), scores

    def _product(self, score: float, length: float) -> float:
        """The inner product x of a score: 1 + x or 1 / (1 − x) for innerproduct, (1 + cos) / 2 for cosinesimil."""
        if self._config.space == "cosinesimil":
            return (2 * score - 1) * length
        return score - 1 if score >= 1 else 1 - 1 / score


def _positions(hits: Hits, documents: Documents, config: RemoteConfig) -> npt.NDArray[np.int64]:
    try:
        return np.array([documents.position(id_) for id_, _ in hits], dtype=np.int64)
    except KeyError as error:
        raise IndexFolderError(
            f"{config.index!r} at {config.url} holds a document {error}, which the corpus does not have. "
            "Fill it with this corpus, under its ids."
        ) from None
