"""HTTP client of an OpenSearch-compatible service: index descriptions, searches, retries and errors.

A search returns all its results or raises. No connection, a timeout, 408, 429, 5xx, a reply that is not JSON, and a
reply from only a part of the shards are retried until the deadline and then raise EnvironmentUnavailableError; other
errors of the service raise at once. A failure never becomes an empty ranking.
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

from ...configs.schema import RemoteConfig
from ...errors import ConfigError, EnvironmentUnavailableError, IndexFolderError, QuerylectError, RequestError

Answer = TypeVar("Answer")
Query = dict[str, Any]
Hits = list[tuple[str, float]]
"""(id, score), best first."""

_PER_REQUEST = 64
_BACKOFF, _MAX_BACKOFF = 0.1, 5.0
_MAX_CHARS = 300
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
        answer = self._ask("GET", f"/{quote(self._config.index)}", None, lambda body: body)
        described = [value for value in answer.values() if isinstance(value, dict)]
        if len(described) != 1:
            raise ConfigError(
                f"env.remote.index {self._config.index!r} stands for {len(described)} indexes at {self._config.url}; "
                "expected one. Name one index, or an alias of one."
            )
        return described[0]

    def count(self) -> int:
        """Number of documents in the index."""
        return int(self._ask("GET", f"/{quote(self._config.index)}/_count", None, lambda body: int(body["count"])))

    def search(self, queries: Sequence[tuple[Query, int]]) -> list[Hits]:
        """The hits of each (query, number of hits), scored with the word statistics of the whole index."""
        header = {"index": self._config.index, "search_type": "dfs_query_then_fetch", "preference": "querylect"}
        results: list[Hits] = []
        for start in range(0, len(queries), _PER_REQUEST):
            part = queries[start : start + _PER_REQUEST]
            bodies = ({"query": query, "size": size, "_source": False} for query, size in part)
            lines = "".join(f"{json.dumps(header)}\n{json.dumps(body)}\n" for body in bodies)
            results += self._ask("POST", "/_msearch", lines, partial(_hits, expected=len(part)))
        return results

    def _ask(self, method: str, path: str, lines: str | None, parse: Callable[[dict[str, Any]], Answer]) -> Answer:
        deadline = time.monotonic() + self._config.deadline
        wait = _BACKOFF
        while True:
            try:
                return parse(self._attempt(method, path, lines))
            except (_Failed, httpx.TransportError, KeyError, TypeError, ValueError) as error:
                cause = str(error) or type(error).__name__
                remaining = deadline - time.monotonic()
                if remaining <= wait:
                    raise EnvironmentUnavailableError(
                        f"{self._config.url} did not answer {method} {path} completely within "
                        f"{self._config.deadline:g} s; the last attempt: {cause}. Check that the service of env.remote "
                        "runs and has room, or raise env.remote.deadline."
                    ) from error
            time.sleep(random.uniform(0, wait))
            wait = min(2 * wait, _MAX_BACKOFF)

    def _attempt(self, method: str, path: str, lines: str | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/x-ndjson"} if lines else {}
        answer = self._http.request(method, path, content=lines, headers=headers)
        if answer.status_code in _BUSY or answer.status_code >= 500:
            raise _Failed(f"HTTP {answer.status_code}: {answer.text[:_MAX_CHARS]}")
        if answer.status_code in (401, 403):
            raise ConfigError(
                f"{self._config.url} refuses access (HTTP {answer.status_code}). Put the Authorization header that it "
                f"wants into the environment variable {self._config.auth_env} (env.remote.auth_env)."
            )
        if answer.status_code != 200:
            raise self._refused(answer.status_code, answer.text)
        body = answer.json()
        if not isinstance(body, dict):
            raise _Failed(f"a {type(body).__name__} instead of an object")
        for response in body.get("responses", []):
            status = response.get("status", 200)
            if status in _BUSY or status >= 500:
                raise _Failed(f"a search failed with status {status}: {json.dumps(response.get('error'))[:_MAX_CHARS]}")
            if "error" in response:
                raise self._refused(status, json.dumps(response["error"]))
        return body

    def _refused(self, status: int, detail: str) -> QuerylectError:
        if status == 404:
            return IndexFolderError(
                f"{self._config.url} has no index {self._config.index!r}. Fill it with the corpus, or mend "
                "env.remote.index."
            )
        return RequestError(f"{self._config.url} refuses the request (status {status}): {detail[:_MAX_CHARS]}")


def _hits(answer: dict[str, Any], expected: int) -> list[Hits]:
    responses = answer["responses"]
    if len(responses) != expected:
        raise _Failed(f"{len(responses)} answers to {expected} searches")
    for response in responses:
        if response.get("timed_out") or response.get("_shards", {}).get("failed"):
            raise _Failed(f"only a part of the shards answered: {json.dumps(response.get('_shards'))[:_MAX_CHARS]}")
    return [[(hit["_id"], float(hit["_score"])) for hit in response["hits"]["hits"]] for response in responses]
