"""BM25 and dense retrieval from a Milvus collection, with the rankings of the local index (env.engine=milvus).

Parts are written as for a local index; instead of writing postings or vectors, the shards or the merge load their rows
into a collection. For BM25 a document is a sparse vector of the same weights that the local index has. A search returns
the stored vectors of its candidates, and these are scored as the local index scores them: scores are equal to the last
bit, and all that an approximate index of Milvus can change is which documents are candidates. Milvus takes no negative
sparse weights, so a probe's positive terms find the candidates, the negative ones only lower their scores, and more
candidates are fetched until no other document can enter the ranking.
"""

import hashlib
import json
import logging
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...configs.environment import EnvironmentConfig
from ...errors import ConfigError, IndexFolderError, RequestError
from ...storage import data_sha256, parse_json
from ..index import postings
from ..index.arrays import SortedWords, mapped
from ..plan import Probe, Term, is_effective
from ..recipes import RetrieverRecipe
from .base import Kind
from .bm25 import FREQUENT, Bm25Kind, join_lengths, lucene, tokenise
from .candidates import SPARE, Candidates, rank_candidates
from .dense import VECTORS, EncodedKind, Unranked, VectorRetriever, scored_again
from .encoder import Encoder
from .fusion import NOTHING, Scored
from .milvus_collection import (
    MAX_RESULTS,
    RELOAD,
    Block,
    Collection,
    StoredHit,
    Vector,
    WordWeights,
    check_uri,
    largest_sizes,
    rows_sha256,
    vector_bytes,
)

log = logging.getLogger(__name__)

COLLECTION = "collection.json"
_FREQUENCIES = "frequencies.npy"
_SIZES, _ROWS = "vectors.sizes.npy", "rows.npy"
_LOADING = "_loading"
_CHECKED = 16
"""Rows of a collection that are compared when it is opened."""
_ROUNDING = 1e-4
"""How much Milvus's scores, in float32, may differ from ours, relative to their size."""

Array = npt.NDArray[np.int64]


def open_milvus(config: EnvironmentConfig, recipe: RetrieverRecipe) -> Kind:
    """The kind of a BM25 or dense recipe.

    Raises ConfigError for other retrievers and for settings of FAISS, ModelError as the encoder.
    """
    if recipe.kind not in ("bm25", "dense"):
        raise ConfigError(
            f"env.engine is milvus, but retriever {recipe.name!r} is {recipe.kind}; Milvus searches for bm25 and dense "
            "retrievers. Leave env.engine out, or give it to the members of a hybrid."
        )
    check_uri(config.milvus)
    if recipe.kind == "bm25":
        return MilvusBm25(recipe, config)
    if config.vectors.search != "flat" or config.vectors.device != "cpu":
        raise ConfigError(
            f"env.vectors.search={config.vectors.search} and device={config.vectors.device} are settings of FAISS, and "
            "env.engine is milvus. Leave them out; env.milvus.index_type chooses Milvus's index."
        )
    if config.milvus.index_type == "DISKANN" and config.milvus.embedded:
        raise ConfigError(
            "env.milvus.index_type is DISKANN, which the embedded database does not have: it would scan all vectors. "
            "Choose HNSW, or name a Milvus server in env.milvus.uri."
        )
    return MilvusDense(recipe, config)


def verify_collection(config: EnvironmentConfig) -> None:
    """Read every row of the collection of an index. Raises IndexFolderError if they are not those that were loaded."""
    _Loader(config).verify(config.index_folder)


class _Content:
    """sha256 of the keys and of the vectors of blocks, the same for any blocks of the same rows."""

    def __init__(self) -> None:
        self.rows = 0
        self._keys, self._vectors = hashlib.sha256(), hashlib.sha256()

    def add(self, block: Block) -> None:
        keys, vectors = block
        self.rows += len(keys)
        self._keys.update(keys.tobytes())
        self._vectors.update(b"".join(map(vector_bytes, vectors)))

    def hashes(self) -> list[str]:
        return [self._keys.hexdigest(), self._vectors.hexdigest()]


class _Loader:
    """The collection of one index folder: loads it, and opens it after checking its content.

    Rows go into a collection whose name ends in _LOADING. The merge gives it its own name after it has read every row,
    so an index never searches a collection that is not complete.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config.milvus
        self._uri = config.milvus.uri or f"{Path(config.index).expanduser()}.milvus.db"
        self.one_process = config.milvus.embedded

    def load_shard(self, build: str, dimension: int | None, blocks: Iterator[Block]) -> None:
        """Load some of the rows of a build, unless its collection is complete."""
        name = self._name(build, dimension)
        with closing(self._collection(name + _LOADING, dimension)) as collection:
            if not collection.exists(name):
                collection.load(blocks, verify=False)

    def load(self, folder: Path, build: str, dimension: int | None, last: int, blocks: Iterator[Block]) -> None:
        """Load the rows that the collection of a build does not store, check all, and describe it in `folder`.

        `last`: the greatest key. A complete collection is only checked: other indexes may search it.
        """
        name, stride = self._name(build, dimension), max(1, last // _CHECKED)
        content = _Content()
        checks: dict[int, str] = {}

        def hashed() -> Iterator[Block]:
            for keys, vectors in blocks:
                content.add((keys, vectors))
                for row in np.flatnonzero(keys % stride == 0).tolist():
                    checks[int(keys[row])] = rows_sha256([vectors[row]])
                yield keys, vectors

        with closing(self._collection(name + _LOADING, dimension)) as collection:
            if collection.exists(name):
                log.info("checking collection %s at %s", name, self._uri)
                collection.name = name
                collection.open()
                collection.check(hashed())
                collection.check_count(content.rows)
            else:
                log.info("loading collection %s at %s", name, self._uri)
                collection.load(hashed(), verify=True)
                collection.check_count(content.rows)
                collection.rename(name)
        description = {
            "collection": name,
            "rows": content.rows,
            "last": last,
            "dimension": dimension,
            "index": self._index(dimension),
            "content": content.hashes(),
            "checks": checks,
        }
        (folder / COLLECTION).write_text(json.dumps(description, indent=1), encoding="utf-8")

    def open(self, folder: Path) -> Collection:
        """The collection of `folder`. IndexFolderError if it is missing, has other rows, or another index."""
        description = parse_json((folder / COLLECTION).read_bytes())
        dimension = description["dimension"]
        if description["index"] != self._index(dimension):
            raise IndexFolderError(
                f"collection {description['collection']} was built with {description['index']}; env.milvus says "
                f"{self._index(dimension)}. Build it again (querylect index build --overwrite), or set it as it was."
            )
        collection = self._collection(description["collection"], dimension, _sizes(folder, dimension))
        collection.open()
        collection.check_count(description["rows"])
        _compare(collection, {int(key): value for key, value in description["checks"].items()})
        return collection

    def verify(self, folder: Path) -> None:
        """Compare all rows with the hashes in `folder`. Raises IndexFolderError as `open`."""
        description, content = parse_json((folder / COLLECTION).read_bytes()), _Content()
        with closing(self.open(folder)) as collection:
            for block in collection.read(description["last"]):
                content.add(block)
        if content.hashes() != description["content"]:
            raise IndexFolderError(
                f"collection {collection.name} at {self._uri} has other rows than were loaded. {RELOAD}"
            )

    def _name(self, build: str, dimension: int | None) -> str:
        return f"{self._config.collection}_{data_sha256([build, self._index(dimension)])[:32]}"

    def _collection(self, name: str, dimension: int | None, sizes: Array | None = None) -> Collection:
        return Collection(self._config, self._uri, name, dimension, sizes)

    def _index(self, dimension: int | None) -> list[object]:
        return [self._config.index_type, dict(self._config.index_params)] if dimension else ["SPARSE_INVERTED_INDEX"]


def _sizes(folder: Path, dimension: int | None) -> Array | None:
    """Bytes of the largest vectors, as `Collection` takes them."""
    sizes: Array | None = None if dimension else np.load(folder / _SIZES, allow_pickle=False)
    return sizes


def _compare(collection: Collection, checks: dict[int, str]) -> None:
    stored = collection.vectors(list(checks))
    differs = [
        position
        for position, value in checks.items()
        if position not in stored or rows_sha256([stored[position]]) != value
    ]
    if differs:
        raise IndexFolderError(
            f"collection {collection.name} at {collection.uri} has another vector at row {differs[0]} than was loaded. "
            f"{RELOAD}"
        )


class MilvusKind(ABC):
    """What both kinds share: rows are numbered as in the corpus, so that a shard need not know the sizes of others."""

    needs_all_parts: bool
    """Whether a vector depends on all documents."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._loader = _Loader(config)
        self.build = ""
        """Identifies what the vectors are computed from (`BuildSteps.content_hash`); set before rows are loaded."""

    @property
    def loads_shards(self) -> bool:
        """Whether several processes may load at the same time, which an embedded database does not allow."""
        return not self._loader.one_process

    def write_rows(self, folder: Path, rows: Sequence[int]) -> None:
        """Write the numbers of a part's documents in the corpus."""
        np.save(folder / _ROWS, np.array(rows, dtype=np.int64))

    @abstractmethod
    def load_shard(self, parts: Sequence[Path], shard: Sequence[Path]) -> None:
        """Load the rows of `shard`, some of the parts, given in corpus order; all parts are `parts` if needed."""


def _join_rows(parts: Sequence[Path], folder: Path) -> int:
    """The last row of all parts. Writes the rows unless they are 0, 1, 2 …, as in a corpus without blank lines."""
    rows = np.concatenate([np.load(part / _ROWS, allow_pickle=False) for part in parts])
    if rows[-1] != len(rows) - 1:
        np.save(folder / _ROWS, rows)
    return int(rows[-1])


def _open_rows(folder: Path) -> Array | None:
    return mapped(folder / _ROWS) if (folder / _ROWS).exists() else None


class MilvusDense(EncodedKind, MilvusKind):
    """Dense retrieval; the encoder and the parts are those of the local index."""

    def __init__(self, recipe: RetrieverRecipe, config: EnvironmentConfig) -> None:
        EncodedKind.__init__(self, recipe, config.vectors, config.encoder_device)
        MilvusKind.__init__(self, config)

    needs_all_parts = False

    def load_shard(self, parts: Sequence[Path], shard: Sequence[Path]) -> None:
        """As `MilvusKind.load_shard`."""
        self._loader.load_shard(self.build, _dimension(shard), map(_encoded, shard))

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Load the vectors of all parts."""
        last = _join_rows(parts, folder)
        self._loader.load(folder, self.build, _dimension(parts), last, map(_encoded, parts))

    def load(self, folder: Path, documents: Sized) -> "MilvusVectors":
        """Open the collection."""
        return MilvusVectors(self._loader.open(folder), self.encoder, len(documents), _open_rows(folder))


def _dimension(parts: Sequence[Path]) -> int:
    return int(mapped(parts[0] / VECTORS).shape[1])


def _encoded(part: Path) -> Block:
    return np.load(part / _ROWS, allow_pickle=False), list(np.asarray(mapped(part / VECTORS), dtype=np.float32))


class MilvusVectors(VectorRetriever):
    """Searches a collection, which returns the stored vectors of its candidates."""

    def __init__(self, collection: Collection, encoder: Encoder, documents: int, rows: Array | None = None) -> None:
        """`rows`: the key of each document; None: its position."""
        super().__init__(encoder)
        self._collection, self._documents, self._rows = collection, documents, rows

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """As `VectorRetriever.rank`. Raises RequestError for more documents than Milvus returns."""
        check_limits(limits, self._documents)
        return super().rank(probes, limits)

    def _candidates(self, vectors: npt.NDArray[np.float64], limits: Sequence[int]) -> Iterator[Unranked]:
        answers = self._collection.search(list(vectors.astype(np.float32)), max(limits) + SPARE)
        for vector, hits in zip(vectors, answers, strict=True):
            stored = np.stack([np.asarray(hit.vector, dtype=np.float32) for hit in hits])
            yield _positions(hits, self._rows), scored_again(stored, vector)


class MilvusBm25(Bm25Kind, MilvusKind):
    """BM25; words, counts, weights and parts are those of the local index."""

    needs_all_parts = True

    def __init__(self, recipe: RetrieverRecipe, config: EnvironmentConfig) -> None:
        Bm25Kind.__init__(self, recipe, "bm25s")
        MilvusKind.__init__(self, config)

    def load_shard(self, parts: Sequence[Path], shard: Sequence[Path]) -> None:
        """As `MilvusKind.load_shard`."""
        with tempfile.TemporaryDirectory() as folder:
            weigh = _weigher(parts, Path(folder))
        numbers = {part: number for number, part in enumerate(parts)}
        self._loader.load_shard(self.build, None, (weigh(numbers[part]) for part in shard))

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Load a sparse vector per document with a word; the folder keeps the words and their frequencies."""
        weigh = _weigher(parts, folder)
        np.save(folder / _SIZES, largest_sizes([np.bincount(mapped(part / postings.INDICES)) for part in parts]))
        last = _join_rows(parts, folder)
        self._loader.load(folder, self.build, None, last, map(weigh, range(len(parts))))

    def load(self, folder: Path, documents: Sized) -> "MilvusWords":
        """Open the collection, and the words."""
        return MilvusWords(self._loader.open(folder), folder, len(documents), _open_rows(folder))


def _weigher(parts: Sequence[Path], folder: Path) -> Callable[[int], Block]:
    """A function from the number of a part to its rows; `folder` gets the words and lengths of all parts."""
    sizes, lengths = join_lengths(parts, folder)
    words, word_ids = postings.join_words(parts, folder)
    frequencies = postings.frequencies(parts, word_ids, words)
    np.save(folder / _FREQUENCIES, frequencies)
    weigh, bases = lucene(lengths), np.cumsum([0, *sizes])

    def rows(number: int) -> Block:
        part, ids = parts[number], word_ids[number]
        word = np.repeat(ids, np.diff(mapped(part / postings.INDPTR)))
        document = np.asarray(mapped(part / postings.INDICES), dtype=np.int64)
        weights = weigh(frequencies[word], document + bases[number], mapped(part / postings.DATA))
        order = np.lexsort((word, document))
        document, word, weights = document[order], word[order], weights[order]
        with_words = np.unique(document)
        starts = np.append(np.searchsorted(document, with_words), len(document))
        keys = np.load(part / _ROWS, allow_pickle=False)[with_words]
        return keys, _dictionaries(starts, word, weights)

    return rows


class MilvusWords:
    """Ranks probes by Σ wᵢ·BM25(tᵢ)."""

    def __init__(self, collection: Collection, folder: Path, documents: int, rows: Array | None) -> None:
        """`rows`: the key of each document; None: its position."""
        self._collection, self._documents, self._rows = collection, documents, rows
        self._words = SortedWords(folder)
        frequencies = np.load(folder / _FREQUENCIES, allow_pickle=False)
        if len(frequencies) != len(self._words):
            raise ValueError(f"{_FREQUENCIES} has {len(frequencies)} words, and the list of words {len(self._words)}")
        frequent = np.flatnonzero(frequencies > FREQUENT * documents).tolist()
        self.frequent_terms = [self._words.word(word) for word in frequent]
        """The stemmed words that occur in more than FREQUENT of the documents, sorted."""

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents with a score above 0.

        Raises RequestError for more documents than Milvus returns.
        """
        check_limits(limits, self._documents)
        terms = [self._terms(probe) for probe in probes]
        queries = {row: query for row, pairs in enumerate(terms) if (query := _positive(pairs))}

        def search(sizes: Mapping[int, int]) -> dict[int, Candidates]:
            candidates: dict[int, Candidates] = {}
            for size in sorted(set(sizes.values())):
                rows = [row for row in sizes if sizes[row] == size]
                for row, hits in zip(rows, self._collection.search([queries[row] for row in rows], size), strict=True):
                    scores = np.array([_score(terms[row], hit.vector) for hit in hits])
                    bound = hits[-1].score * (1 + _ROUNDING) if hits else 0.0
                    candidates[row] = Candidates(_positions(hits, self._rows), scores, bound)
            return candidates

        cut = f"the {MAX_RESULTS} candidates that Milvus returns at most"
        row_limits = {row: limits[row] for row in queries}
        ranked = rank_candidates(row_limits, MAX_RESULTS, self._documents, search, cut)
        return [ranked.get(row, NOTHING) for row in range(len(probes))]

    def _terms(self, probe: Probe) -> list[tuple[float, list[int]]]:
        """Weight and word ids, with repetitions, of every term."""
        spoken: list[Term] = [term for term in probe.terms if is_effective(term)]
        return [
            (term.weight, [word for word in map(self._words.position, tokens) if word >= 0])
            for term, tokens in zip(spoken, tokenise([term.text for term in spoken]), strict=True)
        ]


def _dictionaries(starts: Array, words: npt.NDArray[np.int32], weights: npt.NDArray[np.float32]) -> list[WordWeights]:
    """Rows of word weights; row i has the entries `starts[i]` to `starts[i + 1]`."""
    ids, values = words.tolist(), weights.tolist()
    return [dict(zip(ids[start:end], values[start:end], strict=True)) for start, end in pairwise(starts.tolist())]


def _positive(terms: Sequence[tuple[float, list[int]]]) -> WordWeights:
    query: WordWeights = {}
    for weight, words in terms:
        if weight > 0:
            for word in words:
                query[word] = query.get(word, 0.0) + weight
    return query


def _score(terms: Sequence[tuple[float, list[int]]], document: Vector) -> float:
    """Σ wᵢ·BM25(tᵢ), each term summed in float32 in the order of its words, as bm25s does."""
    assert isinstance(document, dict)
    total = 0.0
    for weight, words in terms:
        score = np.float32(0)
        for word in words:
            score += np.float32(document.get(word, 0.0))
        total += weight * float(score)
    return total


def check_limits(limits: Sequence[int], documents: int) -> None:
    """Raises RequestError if more documents are requested than Milvus returns, and there are more."""
    if limits and max(limits) > MAX_RESULTS < documents:
        raise RequestError(
            f"a plan asks for {max(limits)} documents; Milvus returns at most {MAX_RESULTS}. Ask for fewer."
        )


def _positions(hits: Sequence[StoredHit], rows: Array | None) -> Array:
    keys = np.array([hit.key for hit in hits], dtype=np.int64)
    return keys if rows is None else np.searchsorted(rows, keys)
