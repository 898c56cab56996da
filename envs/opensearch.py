"""What is said over HTTP to an OpenSearch-compatible service: descriptions, searches, and what went wrong.

A search is answered completely or not at all. No connection, no answer in time, 408, 429, 5xx, an answer that is not
JSON, and an answer from only a part of the shards are tried again until the deadline and then raise
EnvironmentUnavailableError; what the service calls wrong is an error at once. Nothing ever becomes an empty ranking.
"""

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from ..configs.schema import RemoteConfig
from ..errors import ConfigError, EnvironmentUnavailableError, IndexFolderError, QuerylectError, RequestError

Answer = TypeVar("Answer")
Query = dict[str, Any]
Hits = list[tuple[str, float]]
"""Ids and scores, best first."""

_PER_REQUEST = 64
_BACKOFF, _MAX_BACKOFF = 0.1, 5.0
_SHOWN = 300
_BUSY = {408, 429}


class _Failed(Exception):
    """One attempt without a complete answer."""


class OpenSearch:
    """One index of a service. Not thread-safe."""

    def __init__(self, config: RemoteConfig) -> None:
        url = httpx.URL(config.url.rstrip("/"))
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigError(f"env.remote.url is {config.url!r}; expected http://HOST:PORT or https://HOST:PORT.")
        if url.userinfo:
            raise ConfigError(
                "env.remote.url holds a user name or password. Put the Authorization header into the environment "
                f"variable {config.auth_env} instead (env.remote.auth_env)."
            )
        auth = os.environ.get(config.auth_env)
        self._config = config
        self._http = httpx.Client(
            base_url=url, timeout=config.timeout, headers={"Authorization": auth} if auth else {}, trust_env=False
        )

    def describe(self) -> dict[str, Any]:
        """Settings and mappings of the index, under `settings` and `mappings`."""
        answer = self._ask("GET", f"/{quote(self._config.index)}", None, lambda found: found)
        described = [value for value in answer.values() if isinstance(value, dict)]
        if len(described) != 1:
            raise ConfigError(
                f"env.remote.index {self._config.index!r} stands for {len(described)} indexes at {self._config.url}; "
                "expected one. Name one index, or an alias of one."
            )
        return described[0]

    def count(self) -> int:
        """Number of documents in the index."""
        return int(self._ask("GET", f"/{quote(self._config.index)}/_count", None, lambda found: int(found["count"])))

    def search(self, queries: Sequence[tuple[Query, int]]) -> list[Hits]:
        """The hits of each (query, number of hits wanted), scored with the word statistics of the whole index."""
        header = {"index": self._config.index, "search_type": "dfs_query_then_fetch", "preference": "querylect"}
        found: list[Hits] = []
        for start in range(0, len(queries), _PER_REQUEST):
            part = queries[start : start + _PER_REQUEST]
            bodies = ({"query": query, "size": size, "_source": False} for query, size in part)
            lines = "".join(f"{json.dumps(header)}\n{json.dumps(body)}\n" for body in bodies)
            found += self._ask("POST", "/_msearch", lines, partial(_hits, wanted=len(part)))
        return found

    def _ask(self, method: str, path: str, lines: str | None, read: Callable[[dict[str, Any]], Answer]) -> Answer:
        end = time.monotonic() + self._config.deadline
        wait = _BACKOFF
        while True:
            try:
                return read(self._attempt(method, path, lines))
            except (_Failed, httpx.TransportError, KeyError, TypeError, ValueError) as error:
                seen = str(error) or type(error).__name__
                left = end - time.monotonic()
                if left <= wait:
                    raise EnvironmentUnavailableError(
                        f"{self._config.url} did not answer {method} {path} completely within "
                        f"{self._config.deadline:g} s; the last attempt: {seen}. Check that the service of env.remote "
                        "runs and has room, or raise env.remote.deadline."
                    ) from error
            time.sleep(random.uniform(0, wait))
            wait = min(2 * wait, _MAX_BACKOFF)

    def _attempt(self, method: str, path: str, lines: str | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/x-ndjson"} if lines else {}
        answer = self._http.request(method, path, content=lines, headers=headers)
        if answer.status_code in _BUSY or answer.status_code >= 500:
            raise _Failed(f"HTTP {answer.status_code}: {answer.text[:_SHOWN]}")
        if answer.status_code in (401, 403):
            raise ConfigError(
                f"{self._config.url} refuses access (HTTP {answer.status_code}). Put the Authorization header that it "
                f"wants into the environment variable {self._config.auth_env} (env.remote.auth_env)."
            )
        if answer.status_code != 200:
            raise self._refused(answer.status_code, answer.text)
        found = answer.json()
        if not isinstance(found, dict):
            raise _Failed(f"a {type(found).__name__} instead of an object")
        for each in found.get("responses", []):
            status = each.get("status", 200)
            if status in _BUSY or status >= 500:
                raise _Failed(f"a search failed with status {status}: {json.dumps(each.get('error'))[:_SHOWN]}")
            if "error" in each:
                raise self._refused(status, json.dumps(each["error"]))
        return found

    def _refused(self, status: int, said: str) -> QuerylectError:
        if status == 404:
            return IndexFolderError(
                f"{self._config.url} has no index {self._config.index!r}. Fill it with the corpus, or mend "
                "env.remote.index."
            )
        return RequestError(f"{self._config.url} refuses the request (status {status}): {said[:_SHOWN]}")


def _hits(answer: dict[str, Any], wanted: int) -> list[Hits]:
    responses = answer["responses"]
    if len(responses) != wanted:
        raise _Failed(f"{len(responses)} answers to {wanted} searches")
    for each in responses:
        if each.get("timed_out") or each.get("_shards", {}).get("failed"):
            raise _Failed(f"only a part of the shards answered: {json.dumps(each.get('_shards'))[:_SHOWN]}")
    return [[(hit["_id"], float(hit["_score"])) for hit in each["hits"]["hits"]] for each in responses]
