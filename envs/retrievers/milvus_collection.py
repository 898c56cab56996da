"""One collection of a Milvus server, or of an embedded database (milvus-lite), through pymilvus.

A row is the number of a document in its corpus (the primary key) and a vector. Rows are loaded in blocks: one that is
stored with the same hash is not sent again, so an interrupted load continues, and several processes of one server may
load at the same time. pymilvus repeats a call while the server is away, until the call's time is over.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
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
Block = tuple[npt.NDArray[np.int64], Sequence[Vector]]
"""Keys of rows, ascending, and their vectors."""

MAX_RESULTS = 16_384
"""Most rows that Milvus returns for one search."""
_KEY, _FIELD = "position", "vector"
_PER_REQUEST = 64
_ANSWER_BYTES = 16 * 2**20
"""Bytes of vectors in one answer, at most. Milvus refuses answers above 64 MB, and pymilvus keeps several copies."""
_ROWS = 1000
_MAX_CHARS = 300
RELOAD = "Drop it and load it again: querylect index build --overwrite."
_MISSING = 100
_INVALID, _DENIED = {1100, 6}, {1400, 1401}
"""Codes of Milvus and milvus-lite: a missing collection, an invalid parameter, a missing login or privilege."""


class StoredHit(NamedTuple):
    """A row of a search: its key, the server's score, and the stored vector."""

    key: int
    score: float
    vector: Vector


class Collection:
    """A collection that may not exist yet.

    Every method raises EnvironmentUnavailableError while the server does not answer in time, ConfigError if it refuses
    access, RequestError for what it calls wrong, and IndexFolderError if the collection is missing.
    """

    def __init__(
        self,
        config: MilvusConfig,
        uri: str,
        name: str,
        dimension: int | None,
        sizes: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """`dimension`: of dense vectors; None: sparse vectors, which are searched by `sizes` (`largest_sizes`)."""
        with optional_packages("milvus"):
            import pymilvus  # noqa: F401
        self.name, self.uri = name, uri
        if sizes is None:
            sizes = np.full(MAX_RESULTS, 4 * (dimension or 1), dtype=np.int64)
        self._answer_bytes = np.cumsum(sizes)
        self._config, self._dimension = config, dimension
        self._client = self._call("connecting", config.deadline, _connect, config, uri)

    def close(self) -> None:
        """Close the connection. A server ends one that pings it for long without a call, as pymilvus does."""
        self._client.close()

    def exists(self, name: str | None = None) -> bool:
        """Whether the server has the collection, or that of another name."""
        return bool(self._call("looking", self._config.deadline, self._client.has_collection, name or self.name))

    def load(self, blocks: Iterable[Block], verify: bool) -> None:
        """Create the collection if it is missing, and send the rows of `blocks` that it does not store.

        `verify`: read back what was sent. Raises IndexFolderError if it differs.
        """
        self._create()
        self._for_each(blocks, partial(self._send, verify))
        self._call("flushing", self._config.build_deadline, self._client.flush, self.name)

    def check(self, blocks: Iterable[Block]) -> None:
        """Read the rows of all blocks. Raises IndexFolderError if one is missing or differs."""
        self._for_each(blocks, self._check)

    def read(self, last: int) -> Iterator[Block]:
        """All rows with keys up to `last`."""
        step = min(_ROWS, self._rows_per_answer())
        for first in range(0, last + 1, step):
            condition = _between(first, first + step - 1)
            stored = self._rows(condition) if self._count(condition) else {}
            keys = sorted(stored)
            yield np.array(keys, dtype=np.int64), [stored[key] for key in keys]

    def rename(self, name: str) -> None:
        """Give the collection another name, and open it, since milvus-lite closes it."""
        self._call("renaming", self._config.build_deadline, self._client.rename_collection, self.name, name)
        self.name = name
        self.open()

    def check_count(self, rows: int) -> None:
        """Raises IndexFolderError if the collection has another number of rows."""
        if (count := self.count()) != rows:
            raise IndexFolderError(
                f"collection {self.name} at {self.uri} holds {count} rows; the index has {rows}. {RELOAD}"
            )

    def open(self) -> None:
        """Make the collection ready for searches."""
        self._call("opening", self._config.build_deadline, self._client.load_collection, self.name)

    def count(self) -> int:
        """The number of rows."""
        return self._count("")

    def vectors(self, positions: Sequence[int]) -> dict[int, Vector]:
        """The stored vectors of the rows that exist."""
        step = self._rows_per_answer()
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
                output_fields=[_FIELD if fitting else _KEY],  # none would be all in milvus-lite
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

    def _rows_per_answer(self) -> int:
        return max(1, int(np.searchsorted(self._answer_bytes, _ANSWER_BYTES, side="right")))

    def _existing(self, positions: Sequence[int]) -> list[Vector]:
        stored = self.vectors(positions)
        missing = [position for position in positions if position not in stored]
        if missing:
            raise IndexFolderError(
                f"collection {self.name} at {self.uri} lost row {missing[0]} during a search. {RELOAD}"
            )
        return [stored[position] for position in positions]

    def _create(self) -> None:
        """Create the collection and its index, each unless another process has, and open it."""
        from pymilvus import DataType

        client, seconds = self._client, self._config.build_deadline
        if not self.exists():
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field(_KEY, DataType.INT64, is_primary=True)
            if self._dimension:
                schema.add_field(_FIELD, DataType.FLOAT_VECTOR, dim=self._dimension)
            else:
                schema.add_field(_FIELD, DataType.SPARSE_FLOAT_VECTOR)
            try:
                self._call("creating", seconds, client.create_collection, self.name, schema=schema)
            except EnvironmentUnavailableError:
                if not self.exists():
                    raise
        params = client.prepare_index_params()
        if self._dimension:
            build = dict(self._config.index_params)
            params.add_index(_FIELD, index_type=self._config.index_type, metric_type="IP", params=build)
        else:
            params.add_index(_FIELD, index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        if not self._indexed():
            try:
                self._call("indexing", seconds, client.create_index, self.name, params)
            except EnvironmentUnavailableError:
                if not self._indexed():
                    raise
        self.open()

    def _indexed(self) -> bool:
        return bool(self._call("looking", self._config.deadline, self._client.list_indexes, self.name))

    def _for_each(self, blocks: Iterable[Block], action: Callable[[list[int], Sequence[Vector]], None]) -> None:
        """Call `action` for the rows of all blocks, as many at a time as a request has room for, in `connections`
        threads."""
        with ThreadPoolExecutor(self._config.connections) as pool:
            pending = set()
            for keys, vectors in blocks:
                largest = max(map(_size, vectors), default=1)
                step = max(1, min(_ROWS, _ANSWER_BYTES // largest))
                for start in range(0, len(keys), step):
                    rows = keys[start : start + step].tolist()
                    pending.add(pool.submit(action, rows, vectors[start : start + step]))
                    if len(pending) > 2 * self._config.connections:
                        done, pending = wait(pending, return_when=FIRST_COMPLETED)
                        for future in done:
                            future.result()
            for future in pending:
                future.result()

    def _send(self, verify: bool, keys: list[int], vectors: Sequence[Vector]) -> None:
        """Send rows, unless they are stored. A row that is sent twice is stored once."""
        if self._stores(keys, vectors):
            return
        rows = [{_KEY: key, _FIELD: vector} for key, vector in zip(keys, vectors, strict=True)]
        self._call("loading", self._config.build_deadline, self._client.upsert, self.name, rows)
        if verify:
            self._check(keys, vectors)

    def _check(self, keys: list[int], vectors: Sequence[Vector]) -> None:
        if not self._stores(keys, vectors):
            raise IndexFolderError(
                f"collection {self.name} at {self.uri} has other rows from {keys[0]} to {keys[-1]} than the index. "
                f"{RELOAD}"
            )

    def _stores(self, keys: list[int], vectors: Sequence[Vector]) -> bool:
        """Whether the rows from the first to the last key are these, by their hash; keys ascend."""
        condition = _between(keys[0], keys[-1])
        if self._count(condition) != len(keys):
            return False
        stored = self._rows(condition)
        return stored.keys() == set(keys) and rows_sha256([stored[key] for key in keys]) == rows_sha256(vectors)

    def _rows(self, condition: str) -> dict[int, Vector]:
        rows = self._call(
            "reading",
            self._config.build_deadline,
            self._client.query,
            self.name,
            filter=condition,
            output_fields=[_KEY, _FIELD],
            consistency_level="Strong",
        )
        return {int(row[_KEY]): self._vector(row[_FIELD]) for row in rows}

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
                f"into the environment variable {self._config.token_env} (env.milvus.token_env)."
            )
        if code == _MISSING:
            return IndexFolderError(
                f"{self.uri} has no collection {self.name}. Load it: querylect index build --overwrite."
            )
        if code in _INVALID:
            return RequestError(f"{self.uri} refuses {action} ({detail}).")
        return EnvironmentUnavailableError(
            f"{action} at {self.uri} failed within {seconds:g} s ({detail}). Check that the server of env.milvus runs "
            "and has room, or raise env.milvus.deadline or build_deadline."
        )


def check_uri(config: MilvusConfig) -> None:
    """Raises ConfigError for an address that is none. Nothing is connected."""
    uri = config.uri
    if uri is None or (config.embedded and uri.endswith(".db")):
        return
    try:
        url = urlsplit(uri)
        valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError as error:
        raise _invalid(uri) from error
    if url.username or url.password:
        raise ConfigError(
            "env.milvus.uri holds a user name or password. Put user:password into the environment variable "
            f"{config.token_env} instead (env.milvus.token_env)."
        )
    if not valid:
        raise _invalid(uri)


def _invalid(uri: str) -> ConfigError:
    return ConfigError(
        f"env.milvus.uri is {uri!r}; expected http://HOST:PORT, https://HOST:PORT or a path that ends in .db."
    )


def largest_sizes(entries: Iterable[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Bytes of the largest sparse vectors, at most MAX_RESULTS of them and the largest first; `entries`: their numbers
    of words, in pieces."""
    largest = np.empty(0, dtype=np.int64)
    for piece in entries:
        largest = np.sort(np.concatenate([largest, piece]))[: -MAX_RESULTS - 1 : -1]
    return 8 * largest


def rows_sha256(vectors: Iterable[Vector]) -> str:
    """sha256 of vectors in float32, in this order."""
    return hashlib.sha256(b"".join(map(vector_bytes, vectors))).hexdigest()


def vector_bytes(vector: Vector) -> bytes:
    """A vector in float32; of a sparse one the number of its words, their ids in order, and their weights."""
    if isinstance(vector, Mapping):
        words = sorted(vector)
        weights = np.array([vector[word] for word in words], dtype=np.float32)
        return np.array([len(words), *words], dtype=np.int64).tobytes() + weights.tobytes()
    return np.asarray(vector, dtype=np.float32).tobytes()


def _between(first: int, last: int) -> str:
    return f"{_KEY} >= {first} and {_KEY} <= {last}"


def _size(vector: Vector) -> int:
    return 8 * len(vector) if isinstance(vector, Mapping) else 4 * len(vector)


_connecting = threading.Lock()


def _connect(config: MilvusConfig, uri: str, timeout: float) -> "MilvusClient":
    from pymilvus import MilvusClient
    from pymilvus.exceptions import ConnectionConfigException

    for name in ("pymilvus.decorators", "pymilvus.client.grpc_handler", "milvus_lite.server_manager", "grpc._server"):
        logging.getLogger(name).addFilter(_reported)
    if config.embedded:
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
    try:
        with _connecting:
            # a connection of its own: a shared one would keep the state of an outage that another collection saw
            return MilvusClient(
                uri, token=token_of(config.token_env), db_name=config.database, timeout=timeout, dedicated=True
            )
    except ConnectionConfigException as error:
        if config.embedded:
            raise ConfigError(
                f"the embedded Milvus database {uri} cannot be opened ({error.message}). One process can have it open "
                "at a time: stop the other one, or serve it (milvus-lite server) and name its URL in env.milvus.uri."
            ) from error
        raise _invalid(uri) from error


def _reported(record: logging.LogRecord) -> bool:
    """Leaves out the traceback of every failed call: `Collection` raises, and says what to do."""
    return record.levelno < logging.ERROR or (
        record.name == "grpc._server" and "not implemented" not in record.getMessage()
    )
