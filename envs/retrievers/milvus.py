"""BM25 and dense retrieval from a Milvus collection (env.engine=milvus), by Milvus's own search and scores.

Parts are written as for a local index; the merge loads their rows into a collection, whose name follows from their
content, instead of writing postings or vectors. For BM25 a document is a sparse vector of the weights that the local
index has, so a probe is one sparse vector, Σ wᵢ·BM25(tᵢ); it takes no negative weight. A row's key is the position of
its document in the corpus.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...configs.environment import EnvironmentConfig
from ...data.sampling import in_batches
from ...errors import EnvironmentUnavailableError, IndexFolderError
from ...sources import optional_packages
from ...storage import data_sha256, file_sha256
from ..index import RECORDS, SortedStrings, mapped, write_json
from ..plan import Probe, is_effective
from .base import NOTHING, SPARE, Retriever, Scored, best, refuse_negative_weights
from .bm25 import FREQUENT, LENGTHS, WORDS, Bm25Factory, lucene
from .dense import VECTORS, DenseFactory, Unranked, VectorRetriever
from .encoder import Encoder
from .tokenizer import WordTokenizer

Vector = npt.NDArray[np.float32] | dict[int, float]
"""A dense vector (d,), or the weights of the words of a sparse one."""

TOKEN = "QUERYLECT_MILVUS_TOKEN"
"""Environment variable with user:password or an API key; if it is unset, none is sent."""
_MAX_RESULTS = 16_384
"""Most rows that Milvus returns for one search; it refuses to search for more."""
COLLECTION = "collection.json"
_FREQUENCIES = "frequencies.npy"
_KEY, _FIELD = "position", "vector"
_QUERIES, _ROWS = 64, 256
"""Vectors in one request of a search, rows in one of a load."""
_SECONDS, _BUILD_SECONDS = 30, 3600


class Collection:
    """One collection of a Milvus server, or of an embedded database (milvus-lite), through pymilvus.

    Every method raises EnvironmentUnavailableError with Milvus's message where a request fails.
    """

    def __init__(self, config: EnvironmentConfig, name: str) -> None:
        """Connect. MissingPackageError without pymilvus."""
        with optional_packages("milvus"):
            from pymilvus import MilvusClient
        self.name = name
        self._uri = config.milvus_uri or f"{config.index_folder}.milvus.db"
        if "://" not in self._uri:
            Path(self._uri).parent.mkdir(parents=True, exist_ok=True)
        with self._outages():
            self._client: MilvusClient = MilvusClient(
                self._uri, token=os.environ.get(TOKEN, ""), timeout=_SECONDS, dedicated=True
            )

    def load(self, vectors: Iterable[tuple[int, Vector]], rows: int, dimension: int | None) -> None:
        """Load (key, vector) pairs, unless the collection holds all rows; one that holds others is dropped first."""
        from pymilvus import DataType

        client = self._client
        with self._outages():
            if client.has_collection(self.name):
                if self._count() == rows:
                    return
                client.drop_collection(self.name)
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field(_KEY, DataType.INT64, is_primary=True)
            index = client.prepare_index_params()
            if dimension is None:
                schema.add_field(_FIELD, DataType.SPARSE_FLOAT_VECTOR)
                index.add_index(_FIELD, index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
            else:
                schema.add_field(_FIELD, DataType.FLOAT_VECTOR, dim=dimension)
                index.add_index(_FIELD, index_type="FLAT", metric_type="IP")
            client.create_collection(self.name, schema=schema, index_params=index, timeout=_BUILD_SECONDS)
            loaded = ({_KEY: key, _FIELD: vector} for key, vector in vectors)
            while block := list(islice(loaded, _ROWS)):
                client.upsert(self.name, block, timeout=_BUILD_SECONDS)
            client.flush(self.name, timeout=_BUILD_SECONDS)

    def open(self, rows: int) -> "Collection":
        """Make it ready for searches. IndexFolderError if it is missing or has another number of rows."""
        with self._outages():
            count = None
            if self._client.has_collection(self.name):
                self._client.load_collection(self.name, timeout=_BUILD_SECONDS)
                count = self._count()
        if count != rows:
            raise IndexFolderError(
                f"collection {self.name} at {self._uri} holds {count} rows; the index has {rows}. Load it again: "
                "querylect index build --overwrite."
            )
        return self

    def close(self) -> None:
        self._client.close()

    def search(self, vectors: Sequence[Vector], limit: int) -> Iterator[Unranked]:
        """For each vector the rows with the largest inner product with it, best first: `limit` of them and some spare
        ones, if there are as many."""
        for batch in in_batches(vectors, _QUERIES):
            with self._outages():
                answers: Any = self._client.search(
                    self.name,
                    data=list(batch),
                    anns_field=_FIELD,
                    limit=max(limit, min(limit + SPARE, _MAX_RESULTS)),
                    output_fields=[_KEY],
                    search_params={"metric_type": "IP"},
                    consistency_level="Strong",
                    timeout=_SECONDS,
                )
            for hits in answers:
                keys = np.array([hit[_KEY] for hit in hits], dtype=np.int64)
                yield keys, np.array([hit["distance"] for hit in hits], dtype=np.float64)

    def _count(self) -> int:
        answer = self._client.query(
            self.name, filter="", output_fields=["count(*)"], consistency_level="Strong", timeout=_SECONDS
        )
        return int(answer[0]["count(*)"])

    @contextmanager
    def _outages(self) -> Iterator[None]:
        import grpc
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except (MilvusException, grpc.RpcError) as error:
            raise EnvironmentUnavailableError(
                f"Milvus at {self._uri} failed ({error}). Check that the server of env.milvus_uri runs and that "
                f"{TOKEN} has the token that it wants; an embedded database (.db) is open in one process at a time."
            ) from error


def load_collection(
    config: EnvironmentConfig,
    folder: Path,
    content: object,
    vectors: Iterable[tuple[int, Vector]],
    rows: int,
    dimension: int | None = None,
) -> None:
    """Load the collection of an index, which is named by its documents and by `content`, what its vectors follow from
    besides."""
    name = f"querylect_{data_sha256([file_sha256(folder / RECORDS), content])[:32]}"
    with closing(Collection(config, name)) as collection:
        collection.load(vectors, rows, dimension)
    write_json(folder / COLLECTION, {"collection": name, "rows": rows})


def open_collection(config: EnvironmentConfig, folder: Path) -> Collection:
    """The collection of an index. IndexFolderError if it is missing or has another number of rows."""
    description = json.loads((folder / COLLECTION).read_bytes())
    return Collection(config, description["collection"]).open(description["rows"])


class MilvusDense(DenseFactory):
    """Dense retrieval; the encoder and the parts are those of the local index."""

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Load the vectors of all parts."""
        pieces = [mapped(part / VECTORS) for part in parts]
        vectors = (np.asarray(vector, dtype=np.float32) for piece in pieces for vector in piece)
        content = [file_sha256(part / VECTORS) for part in parts]
        rows, dimension = sum(map(len, pieces)), pieces[0].shape[1]
        load_collection(self.config, folder, content, enumerate(vectors), rows, dimension)

    def load(self, folder: Path, documents: Sized) -> Retriever:
        """Open the collection."""
        return MilvusVectors(open_collection(self.config, folder), self.encoder)


class MilvusVectors(VectorRetriever):
    """Ranks probes by the inner products of their vectors with those of the collection."""

    def __init__(self, collection: Collection, encoder: Encoder) -> None:
        super().__init__(encoder)
        self._collection = collection

    def _candidates(self, vectors: npt.NDArray[np.float64], limits: Sequence[int]) -> Iterator[Unranked]:
        return self._collection.search(list(vectors.astype(np.float32)), max(limits))


class MilvusBm25(Bm25Factory):
    """BM25; words, counts, weights and parts are those of the local index."""

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Load a sparse vector per document with a word; the folder keeps the words and their frequencies."""
        weights = lucene(*self.join(parts, folder))
        np.save(folder / _FREQUENCIES, np.diff(weights.indptr))
        rows = weights.tocsr()
        filled = np.flatnonzero(np.diff(rows.indptr)).tolist()

        def vectors() -> Iterator[tuple[int, Vector]]:
            for row in filled:
                piece = slice(rows.indptr[row], rows.indptr[row + 1])
                yield row, dict(zip(rows.indices[piece].tolist(), rows.data[piece].tolist(), strict=True))

        load_collection(self.config, folder, f"bm25 {self.config.language}", vectors(), len(filled))

    def load(self, folder: Path, documents: Sized) -> Retriever:
        """Open the collection, and the words."""
        return MilvusWords(open_collection(self.config, folder), folder, self.tokenizer)


class MilvusWords(Retriever):
    """Ranks probes by Σ wᵢ·BM25(tᵢ), wᵢ > 0."""

    def __init__(self, collection: Collection, folder: Path, tokenizer: WordTokenizer) -> None:
        self._collection, self._words, self._tokenizer = collection, SortedStrings(folder, WORDS), tokenizer
        documents = len(mapped(folder / LENGTHS))
        frequent = np.flatnonzero(mapped(folder / _FREQUENCIES) > FREQUENT * documents).tolist()
        self.frequent_terms = [self._words[word] for word in frequent]

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents. RequestError for a negative weight."""
        refuse_negative_weights(probes, "bm25 with env.engine=milvus")
        queries = {row: query for row, probe in enumerate(probes) if (query := self._query(probe))}
        rankings = [NOTHING] * len(probes)
        if queries:
            searched = self._collection.search(list(queries.values()), max(limits))
            for row, (documents, scores) in zip(queries, searched, strict=True):
                rankings[row] = best(documents, scores, limits[row])
        return rankings

    def _query(self, probe: Probe) -> dict[int, float]:
        weights: dict[int, float] = {}
        terms = list(filter(is_effective, probe.terms))
        for term, words in zip(terms, self._tokenizer([term.text for term in terms]), strict=True):
            for word in map(self._words.position, words):
                if word >= 0:
                    weights[word] = weights.get(word, 0.0) + term.weight
        return weights
