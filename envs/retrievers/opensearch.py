"""Retrieval from an OpenSearch-compatible service: BM25 with `match` and `query_string` queries, dense retrievers with
`knn`.

A BM25 probe is one boosted query, Σ wᵢ·BM25(tᵢ) with the service's own analyser and statistics; it takes no negative
weight. A dense probe is one vector Σ wᵢ·e(tᵢ), negative weights included, and the service's scores are converted back
into inner products. A search returns all its results or raises; a failure never becomes an empty ranking.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
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
from .language import HITS_BOUND, ORDERS, Found, LanguageRetriever, refusal

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
_SORT = {"score": "_score", "date": "date"}
"""The field that each `env.order` sorts by, highest first; equal ones are in the order of ids."""
_QUERY_ERRORS = frozenset(
    ("query_shard_exception", "parse_exception", "parsing_exception", "too_many_clauses", "too_many_nested_clauses")
)
"""Types of the exceptions that say something of a query, and nothing of the service."""
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|\\[^<>]', re.DOTALL)
"""What is no operator: a phrase, or a sign after a backslash. (`\\>` is read as `>`.)"""
_FIELD = re.compile(r"([^ \t\n\r\u3000()]*)[ \t\n\r\u3000]*:")
_LANGUAGE = """\
A document matches if it holds at least one word of the query. a AND b: both. a NOT b: the first without the second.
Write AND, OR and NOT in capitals, and parentheses where AND and OR are mixed: (a OR b) AND c.
"a b": the words next to each other; "a b"~5: near each other. title:a, text:a: in that field. a^2: counts double.
wing*: words that begin so. wing~: words of similar spelling. + before a word: must be there. - before it: must not.
Words with + - ! ( ) : ^ ~ * ? \\ / [ ] { } < or > in them go between double quotes; no others may hold these signs."""


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

    def describe(self) -> tuple[dict[str, Any], int]:
        """What identifies the index: its settings and mappings; and its number of documents."""
        name = self._config.index
        with self._outages():
            (described,) = self._client.indices.get(index=name).values()
            count = int(self._client.count(index=name)["count"])
        index = described["settings"]["index"]
        identity = {field: index.get(field) for field in ("uuid", "analysis", "similarity")}
        return {**identity, "mappings": described["mappings"]}, count

    def search(
        self, queries: Sequence[Query], limits: Sequence[int], documents: Documents, sort: str | None = None
    ) -> Iterator[Unranked]:
        """Positions in `documents` and scores of the hits of each query, at most limits[i] and some spare ones, scored
        with the word statistics of the whole index. With `sort`, the hits are in that field's order, and scored by it.
        IndexFolderError for a hit that is not in `documents`."""
        for response in self._responses(queries, limits, documents, sort):
            yield self._hits(response, documents)

    def ask(self, queries: Sequence[Query], limits: Sequence[int], documents: Documents, sort: str) -> Iterator[Found]:
        """As `search`, with the number of documents that match; the error is the service's word on the query."""
        for response in self._responses(queries, limits, documents, sort):
            with self._outages():
                error = _query_error(response)
                ranking = NOTHING if error else Scored(*self._hits(response, documents))
                hits = 0 if error else min(int(response["hits"]["total"]["value"]), HITS_BOUND)
            yield Found(ranking, hits, error)

    def _responses(
        self, queries: Sequence[Query], limits: Sequence[int], documents: Documents, sort: str | None
    ) -> Iterator[dict[str, Any]]:
        header: dict[str, object] = {
            "index": self._config.index,
            "search_type": "dfs_query_then_fetch",
            "preference": "querylect",
        }
        order = {} if sort is None else {"sort": [{sort: "desc"}, {"_id": "asc"}], "track_total_hits": HITS_BOUND}
        for start in range(0, len(queries), _PER_REQUEST):
            lines = []
            for query, limit in list(zip(queries, limits, strict=True))[start : start + _PER_REQUEST]:
                lines += [header, {"query": query, "size": _size(limit, documents), "_source": False, **order}]
            with self._outages():
                responses = self._client.msearch(body=lines)["responses"]
            yield from responses

    def _hits(self, response: dict[str, Any], documents: Documents) -> Unranked:
        with self._outages():
            if "error" in response or response["timed_out"] or response["_shards"]["failed"]:
                details = response.get("error") or response["_shards"]
                raise EnvironmentUnavailableError(f"{self._config.url} did not search all shards: {details}")
            hits = [(hit["_id"], float(hit.get("sort", [hit["_score"]])[0])) for hit in response["hits"]["hits"]]
        for name, _ in hits:
            if name not in documents:
                raise IndexFolderError(
                    f"{self._config.index!r} at {self._config.url} holds a document {name!r}, which the corpus does "
                    "not have. Fill it with this corpus, under its ids."
                )
        positions = np.array([documents.position(name) for name, _ in hits], dtype=np.int64)
        return positions, np.nan_to_num(np.array([score for _, score in hits], dtype=np.float64))

    @contextmanager
    def _outages(self) -> Iterator[None]:
        from opensearchpy import OpenSearchException

        try:
            yield
        except (OpenSearchException, AttributeError, KeyError, TypeError, ValueError) as error:
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

        Raises ConfigError for a language of a dense preset, EnvironmentUnavailableError if the service does not answer.
        """
        assert config.remote is not None, "the settings name the service"
        if config.remote.language and preset.kind == "dense":
            raise ConfigError("env.remote.language is a language of bm25, and this retriever is dense. Leave it out.")
        self._remote, self._service = config.remote, OpenSearchIndex(config.remote)
        self._encoder = Encoder(preset) if preset.kind == "dense" else None
        super().__init__(self._encoder.preset if self._encoder else preset, config, members)
        self._identity, self._count = self._service.describe()

    @classmethod
    def query_language(cls, config: EnvironmentConfig) -> str:
        """Lucene's, where `env.remote.language` says so."""
        has_one = config.remote is not None and config.remote.language is not None
        return f"{_LANGUAGE}\n{ORDERS[config.order]}" if has_one else ""

    @property
    def fingerprint(self) -> str | None:
        """Of the index of the service and of the encoder."""
        content = {
            **self._identity,
            "count": self._count,
            "fields": TEXT_FIELDS if self._encoder is None else [VECTOR_FIELD],
            "encoder": self._encoder.fingerprint if self._encoder else None,
        }
        if self._remote.language:
            content["language"] = self._remote.language
        return f"remote {data_sha256(content)}"

    def load(self, folder: Path, documents: Documents) -> Retriever:
        """The retriever.

        Raises IndexFolderError if service and corpus have different numbers of documents, and for `env.order: date`
        if the index has no dates.
        """
        if self._count != len(documents):
            raise IndexFolderError(
                f"{self._remote.index!r} at {self._remote.url} holds {self._count} documents; the corpus "
                f"has {len(documents)}. Fill it with this corpus, under its ids."
            )
        if self._remote.language:
            dates = self._identity["mappings"].get("properties", {}).get("date", {})
            if self.config.order == "date" and dates.get("type") != "date":
                raise IndexFolderError(
                    f"env.order is date, and {self._remote.index!r} at {self._remote.url} has no field `date` of the "
                    "type date. Add it to the index, or leave out env.order."
                )
            return OpenSearchLanguage(self._service, documents, self.config.order)
        if self._encoder is None:
            return OpenSearchWords(self._service, documents)
        return OpenSearchVectors(self._service, documents, self._encoder)


class OpenSearchWords(Retriever):
    """Ranks probes by Σ wᵢ·BM25(tᵢ), wᵢ > 0, with `match` queries, or lists what they match as `sort` has it."""

    def __init__(self, service: OpenSearchIndex, documents: Documents, sort: str | None = None) -> None:
        self._service, self._documents, self._sort = service, documents, sort

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents. RequestError for a negative weight."""
        refuse_negative_weights(probes, "a bm25 of env.remote")
        rows = [row for row, probe in enumerate(probes) if any(map(is_effective, probe.terms))]
        queries = [self._query(probes[row]) for row in rows]
        rankings = [NOTHING] * len(probes)
        hits = self._service.search(queries, [limits[row] for row in rows], self._documents, self._sort)
        for row, found in zip(rows, hits, strict=True):
            rankings[row] = Scored(*found).cut(limits[row]) if self._sort else best(*found, limits[row])
        return rankings

    def _query(self, probe: Probe) -> Query:
        matches = [
            {"match": {field: {"query": term.text, "boost": term.weight}}}
            for term in filter(is_effective, probe.terms)
            for field in TEXT_FIELDS
        ]
        return {"bool": {"should": matches}}


class OpenSearchLanguage(OpenSearchWords, LanguageRetriever):
    """Also searches `query_string` queries, over the same fields."""

    def __init__(self, service: OpenSearchIndex, documents: Documents, order: str) -> None:
        super().__init__(service, documents, _SORT[order])

    def ask(self, queries: Sequence[str], limits: Sequence[int]) -> list[Found]:
        """As LanguageRetriever.ask; the error is that of Lucene's parser. Equal documents are in the order of ids."""
        answers = [Found(error=refusal(query) or _refusal(query)) for query in queries]
        rows = [row for row, answer in enumerate(answers) if answer.error is None]
        asked = [_query_string(queries[row]) for row in rows]
        found = self._service.ask(asked, [limits[row] for row in rows], self._documents, str(self._sort))
        for row, answer in zip(rows, found, strict=True):
            answers[row] = answer._replace(ranking=answer.ranking.cut(limits[row]))
        return answers


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


def _query_string(query: str) -> Query:
    bounds = {"fuzzy_max_expansions": 50, "fuzzy_prefix_length": 2, "max_determinized_states": 10_000}
    fixed = {"default_operator": "OR", "allow_leading_wildcard": False, "analyze_wildcard": False, "lenient": False}
    return {"query_string": {"query": query, "fields": TEXT_FIELDS, "type": "most_fields", **bounds, **fixed}}


def _refusal(query: str) -> str | None:
    """Why a `query_string` query is not sent: it could read every word of the index, or other fields."""
    operators = _LITERAL.sub("_", query)
    if reason := refusal(operators.replace("?", "*")):
        return reason.replace("*", "* or ?")
    if sign := re.search(r"[/\[\]{}<>]", operators):
        return f"{sign[0]} stands for a regular expression or a range, which are not read; put it between double quotes"
    for field in _FIELD.findall(operators):
        if field.lstrip("+-!") not in TEXT_FIELDS:
            return f"there is no field {field!r} before the colon; put other words with a colon between double quotes"
    return None


def _query_error(response: dict[str, Any]) -> str | None:
    """What the parser says of a query that it refuses, in one line; None for an answer, and for any other failure.

    An item of `_msearch` has an error of its own; each failed shard tells its exception and what caused it.
    """
    failed, name = (response["error"], "failed_shards") if "error" in response else (response["_shards"], "failures")
    causes = [list(_causes(failure["reason"])) for failure in failed.get(name, [])]
    if not causes or not all(any(cause["type"] in _QUERY_ERRORS for cause in chain) for chain in causes):
        return None
    last = causes[0][-1]
    return str(last["reason"] or last["type"]).partition("\n")[0]


def _causes(error: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    while error:
        yield error
        error = error.get("caused_by")
