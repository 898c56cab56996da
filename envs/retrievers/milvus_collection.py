"""One collection of a Milvus server, or of an embedded database (milvus-lite), through pymilvus.

A row is a position of the corpus (the primary key) and a vector. The name of a collection ends in a digest of its
content, so another corpus or model never shares one, a load that was interrupted continues, and two index folders of
equal content share a collection. pymilvus repeats a call while the server is away, until the call's time is over.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from ...configs.environment import MilvusConfig
from ...errors import ConfigError, EnvironmentUnavailableError, IndexFolderError, RequestError
from ...sources import optional_packages
from ..credentials import token_of

if TYPE_CHECKING:
    from pymilvus import MilvusClient

Answer = TypeVar("Answer")
WordWeights = dict[int, float]
Vector = npt.NDArray[np.float32] | WordWeights
"""A dense vector (d,), or the weights of the words of a sparse one."""

MAX_RESULTS = 16_384
"""Most rows that Milvus returns for one search."""
_KEY, _FIELD = "position", "vector"
_PER_REQUEST = 64
_ANSWER_BYTES = 16 * 2**20
"""Bytes of vectors in one answer, at most. Milvus refuses answers above 64 MB, and pymilvus keeps several copies."""
_ROWS = 1000
_MAX_CHARS = 300
_MISSING = 100
_INVALID, _DENIED = {1100, 6}, {1400, 1401}
"""Codes of Milvus and milvus-lite: a missing collection, an invalid parameter, a missing login or privilege."""


class StoredHit(NamedTuple):
    """A row of a search: its position, the server's score, and the stored vector."""

    position: int
    score: float
    vector: Vector


class Collection:
    """A collection that may not exist yet.

    Every method raises EnvironmentUnavailableError while the server does not answer in time, ConfigError if it refuses
    access, RequestError for what it calls wrong, and IndexFolderError if the collection is missing.
    """

    def __init__(
        self, config: MilvusConfig, uri: str, name: str, dimension: int | None, sizes: npt.NDArray[np.int64]
    ) -> None:
        """`dimension`: of dense vectors; None: sparse vectors. `sizes`: as `largest_sizes` returns them."""
        with optional_packages("milvus"):
            import pymilvus  # noqa: F401
        self.name, self.uri = name, uri
        self._answer_bytes = np.cumsum(sizes)
        self._config, self._dimension = config, dimension
        self._client = self._call("connecting", config.deadline, _connect, config, uri)

    def load(self, blocks: Iterable[tuple[npt.NDArray[np.int64], Sequence[Vector]]], rows: int) -> None:
        """Fill the collection with blocks of (positions, vectors), `rows` in all; complete blocks are not sent again.

        Up to `connections` requests are sent at a time.
        """
        if not self._call("looking", self._config.deadline, self._client.has_collection, self.name):
            self._create()
        self.open()
        with ThreadPoolExecutor(self._config.connections) as pool:
            pending = set()
            for positions, vectors in blocks:
                pending.add(pool.submit(self._add, positions, vectors))
                if len(pending) > 2 * self._config.connections:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
            for future in pending:
                future.result()
        self._call("flushing", self._config.build_deadline, self._client.flush, self.name)
        if (count := self.count()) != rows:
            raise IndexFolderError(
                f"collection {self.name} at {self.uri} holds {count} rows after loading; expected {rows}. Another "
                "program changes it: drop it, and build the index again.",
                code="incomplete-collection",
            )

    def open(self) -> None:
        """Make the collection ready for searches."""
        self._call("opening", self._config.build_deadline, self._client.load_collection, self.name)

    def count(self) -> int:
        """The number of rows."""
        return self._count("")

    def vectors(self, positions: Sequence[int]) -> dict[int, Vector]:
        """The stored vectors of the rows that exist."""
        step = max(1, int(np.searchsorted(self._answer_bytes, _ANSWER_BYTES, side="right")))
        stored: dict[int, Vector] = {}
        for start in range(0, len(positions), step):
            rows = self._call(
                "reading",
                self._config.deadline,
                self._client.get,
                self.name,
                list(positions[start : start + step]),
                [_KEY, _FIELD],
                consistency_level="Strong",
            )
            stored |= {int(row[_KEY]): self._vector(row[_FIELD]) for row in rows}
        return stored

    def search(self, vectors: Sequence[Vector], limit: int) -> Iterator[list[StoredHit]]:
        """For each vector the rows with the largest inner product with it, at most `limit` of them, best first.

        A request has as many vectors as an answer has room for. Where one ranking has no room with its vectors, they
        are read afterwards.
        """
        limit = min(limit, MAX_RESULTS)
        params = {"metric_type": "IP", "params": dict(self._config.search_params) if self._dimension else {}}
        fitting = _ANSWER_BYTES // int(self._answer_bytes[:limit][-1])
        size = min(_PER_REQUEST, fitting or _PER_REQUEST)
        for start in range(0, len(vectors), size):
            batch = list(vectors[start : start + size])
            answers = self._call(
                "a search",
                self._config.deadline,
                self._client.search,
                self.name,
                data=batch,
                anns_field=_FIELD,
                limit=limit,
                output_fields=[_FIELD if fitting else _KEY],
                search_params=params,
                consistency_level=self._config.consistency,
            )
            if len(answers) != len(batch):
                raise EnvironmentUnavailableError(
                    f"{self.uri} gave {len(answers)} rankings for {len(batch)} searches. Check the server."
                )
            for answer in answers:
                positions = [int(hit[_KEY]) for hit in answer]
                if fitting:
                    stored = [self._vector(hit["entity"][_FIELD]) for hit in answer]
                else:
                    stored = self._existing(positions)
                scores = [float(hit["distance"]) for hit in answer]
                yield list(map(StoredHit, positions, scores, stored))

    def _existing(self, positions: Sequence[int]) -> list[Vector]:
        stored = self.vectors(positions)
        missing = [position for position in positions if position not in stored]
        if missing:
            raise IndexFolderError(
                f"collection {self.name} at {self.uri} lost row {missing[0]} during a search. Drop it and load it "
                "again: querylect index build --overwrite.",
                code="other-content",
            )
        return [stored[position] for position in positions]

    def _create(self) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field(_KEY, DataType.INT64, is_primary=True)
        params = self._client.prepare_index_params()
        if self._dimension:
            schema.add_field(_FIELD, DataType.FLOAT_VECTOR, dim=self._dimension)
            build = dict(self._config.index_params)
            params.add_index(_FIELD, index_type=self._config.index_type, metric_type="IP", params=build)
        else:
            schema.add_field(_FIELD, DataType.SPARSE_FLOAT_VECTOR)
            params.add_index(_FIELD, index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        self._call(
            "creating",
            self._config.build_deadline,
            self._client.create_collection,
            self.name,
            schema=schema,
            index_params=params,
        )

    def _add(self, positions: npt.NDArray[np.int64], vectors: Sequence[Vector]) -> None:
        """Send a block, unless all its rows are there. A row that is sent twice is stored once."""
        for start in range(0, len(positions), _ROWS):
            keys = positions[start : start + _ROWS].tolist()
            if self._count(f"{_KEY} >= {keys[0]} and {_KEY} <= {keys[-1]}") == len(keys):
                continue
            rows = [
                {_KEY: key, _FIELD: vector} for key, vector in zip(keys, vectors[start : start + _ROWS], strict=True)
            ]
            self._call("loading", self._config.build_deadline, self._client.upsert, self.name, rows)

    def _count(self, condition: str) -> int:
        answer = self._call(
            "counting",
            self._config.build_deadline,
            self._client.query,
            self.name,
            filter=condition,
            output_fields=["count(*)"],
            consistency_level="Strong",
        )
        return int(answer[0]["count(*)"])

    def _vector(self, stored: Sequence[float] | Mapping[int, float]) -> Vector:
        if isinstance(stored, Mapping):
            return {int(word): float(weight) for word, weight in stored.items()}
        return np.asarray(stored, dtype=np.float32)

    def _call(
        self, action: str, seconds: float, ask: Callable[..., Answer], *arguments: object, **options: object
    ) -> Answer:
        """What a call of pymilvus returns within `seconds`."""
        import grpc
        from pymilvus.exceptions import MilvusException

        try:
            return ask(*arguments, timeout=seconds, **options)
        except (MilvusException, grpc.RpcError) as error:
            raise self._failure(action, seconds, error) from error

    def _failure(self, action: str, seconds: float, error: Exception) -> Exception:
        import grpc

        cause = error if isinstance(error, grpc.Call) else error.__cause__  # why connecting failed, say
        code = cause.code() if isinstance(cause, grpc.Call) else getattr(error, "code", None)
        detail = " ".join(str(getattr(error, "message", "") or error).split())[:_MAX_CHARS]
        if code in _DENIED or code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return ConfigError(
                f"{self.uri} refuses access ({detail}). Put the token that it wants (user:password, or an API key) "
                f"into the environment variable {self._config.token_env} (env.milvus.token_env).",
                code="access-denied",
            )
        if code == _MISSING:
            return IndexFolderError(
                f"{self.uri} has no collection {self.name}. Load it: querylect index build --overwrite.",
                code="missing-collection",
            )
        if code in _INVALID:
            return RequestError(f"{self.uri} refuses {action} ({detail}).", code="request-refused")
        return EnvironmentUnavailableError(
            f"{action} at {self.uri} failed within {seconds:g} s ({detail}). Check that the server of env.milvus runs "
            "and has room, or raise env.milvus.deadline or build_deadline."
        )


def embedded(uri: str) -> bool:
    """Whether the database is a folder of this machine, opened by milvus-lite in this process."""
    return "://" not in uri


def dense_sizes(dimension: int) -> npt.NDArray[np.int64]:
    """`largest_sizes` of dense vectors."""
    return np.full(MAX_RESULTS, 4 * dimension, dtype=np.int64)


def largest_sizes(entries: Iterable[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Bytes of the largest sparse vectors, at most MAX_RESULTS of them and the largest first; `entries`: their numbers
    of words, in pieces."""
    largest = np.empty(0, dtype=np.int64)
    for piece in entries:
        largest = np.sort(np.concatenate([largest, piece]))[: -MAX_RESULTS - 1 : -1]
    return 8 * largest


def vector_sha256(vector: Vector) -> str:
    """sha256 of a vector in float32."""
    if isinstance(vector, Mapping):
        pairs = sorted(vector.items())
        words = np.array([word for word, _ in pairs], dtype=np.int64)
        weights = np.array([weight for _, weight in pairs], dtype=np.float32)
        return hashlib.sha256(words.tobytes() + weights.tobytes()).hexdigest()
    return hashlib.sha256(np.asarray(vector, dtype=np.float32).tobytes()).hexdigest()


_connecting = threading.Lock()


def _connect(config: MilvusConfig, uri: str, timeout: float) -> "MilvusClient":
    from pymilvus import MilvusClient
    from pymilvus.exceptions import ConnectionConfigException

    for name in ("pymilvus.decorators", "pymilvus.client.grpc_handler", "milvus_lite.server_manager", "grpc._server"):
        logging.getLogger(name).addFilter(_reported)
    if embedded(uri):
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
    elif urlsplit(uri).username or urlsplit(uri).password:
        raise ConfigError(
            "env.milvus.uri holds a user name or password. Put user:password into the environment variable "
            f"{config.token_env} instead (env.milvus.token_env).",
            code="credentials-in-url",
        )
    try:
        with _connecting:
            # a connection of its own: a shared one would keep the state of an outage that another collection saw
            return MilvusClient(
                uri, token=token_of(config.token_env), db_name=config.database, timeout=timeout, dedicated=True
            )
    except ConnectionConfigException as error:
        if embedded(uri):
            raise ConfigError(
                f"the embedded Milvus database {uri} cannot be opened ({error.message}). One process can have it open "
                "at a time: stop the other one, or serve it (milvus-lite server) and name its URL in env.milvus.uri.",
                code="database-not-opened",
            ) from error
        raise ConfigError(
            f"env.milvus.uri is {uri!r}; expected http://HOST:PORT, https://HOST:PORT or a path that ends in .db.",
            code="invalid-url",
        ) from error


def _reported(record: logging.LogRecord) -> bool:
    """Leaves out the traceback of every failed call: `Collection` raises, and says what to do."""
    return record.levelno < logging.ERROR or (
        record.name == "grpc._server" and "not implemented" not in record.getMessage()
    )
