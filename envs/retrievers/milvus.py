"""BM25 and dense retrieval from a Milvus collection, with the rankings of the local index (env.engine=milvus).

Parts are written as for a local index; merging them loads a collection instead of writing postings or vectors. For BM25
a document is a sparse vector of the same weights that the local index has. A search returns the stored vectors of its
candidates, and these are scored as the local index scores them: scores are equal to the last bit, and all that an
approximate index of Milvus can change is which documents are candidates. Milvus takes no negative sparse weights, so a
probe's positive terms find the candidates, the negative ones only lower their scores, and more candidates are fetched
until no other document can enter the ranking.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...configs.environment import EnvironmentConfig
from ...errors import ConfigError, IndexFolderError, RequestError
from ...storage import data_sha256, parse_json
from ..index import postings
from ..index.arrays import SortedWords, mapped
from ..plan import Probe, Term, is_effective
from ..recipes import RetrieverRecipe, content_fields
from .base import Kind
from .bm25 import FREQUENT, Bm25Kind, join_lengths, lucene, tokenise
from .candidates import SPARE, Candidates, rank_candidates
from .dense import VECTORS, EncodedKind, Unranked, VectorRetriever, scored_again
from .encoder import Encoder
from .fusion import NOTHING, Scored
from .milvus_collection import (
    MAX_RESULTS,
    Collection,
    StoredHit,
    Vector,
    WordWeights,
    dense_sizes,
    largest_sizes,
    vector_sha256,
)

log = logging.getLogger(__name__)

COLLECTION = "collection.json"
_FREQUENCIES = "frequencies.npy"
_SIZES = "vectors.sizes.npy"
_CHECKED = 16
"""Rows of a collection that are compared when it is opened."""
_ROUNDING = 1e-4
"""How much Milvus's scores, in float32, may differ from ours, relative to their size."""

Array = npt.NDArray[np.int64]


class _Block(NamedTuple):
    """Some rows of a collection, in corpus order."""

    positions: Array
    vectors: Sequence[Vector]
    columns: tuple[npt.NDArray[np.generic], ...]
    """The content of the vectors; joined over blocks, each is the same however the rows are split."""


Blocks = Callable[[], Iterator[_Block]]


def open_milvus(config: EnvironmentConfig, recipe: RetrieverRecipe) -> Kind:
    """The kind of a BM25 or dense recipe.

    Raises ConfigError for other retrievers and for settings of FAISS, ModelError as the encoder.
    """
    if recipe.kind not in ("bm25", "dense"):
        raise ConfigError(
            f"env.engine is milvus, but retriever {recipe.name!r} is {recipe.kind}; Milvus searches for bm25 and dense "
            "retrievers. Leave env.engine out, or give it to the members of a hybrid.",
            code="unsupported-retriever",
        )
    if recipe.kind == "bm25":
        return MilvusBm25(recipe, config)
    if config.vectors.search != "flat" or config.vectors.device != "cpu":
        raise ConfigError(
            f"env.vectors.search={config.vectors.search} and device={config.vectors.device} are settings of FAISS, and "
            "env.engine is milvus. Leave them out; env.milvus.index_type chooses Milvus's index.",
            code="faiss-settings",
        )
    return MilvusDense(recipe, config)


class _Loader:
    """The collection of one index folder: loads it, and opens it after checking its content."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config.milvus
        self._uri = config.milvus.uri or f"{Path(config.index).expanduser()}.milvus.db"

    def load(self, folder: Path, recipe: RetrieverRecipe, dimension: int | None, blocks: Blocks) -> None:
        """Load the blocks into a collection named after their content, and describe it in `folder`."""
        rows, last, digests = 0, 0, [hashlib.sha256() for _ in range(4)]
        for block in blocks():
            for column, content in zip((block.positions, *block.columns), digests, strict=False):
                content.update(column.tobytes())
            rows, last = rows + len(block.positions), int(block.positions[-1])
        stride = max(1, last // _CHECKED)
        checks: dict[int, str] = {}
        contents = [content.hexdigest() for content in digests]
        name = (
            f"{self._config.collection}_{data_sha256([content_fields(recipe), self._index(dimension), contents])[:32]}"
        )
        collection = Collection(self._config, self._uri, name, dimension, _sizes(folder, dimension))

        def vectors() -> Iterator[tuple[Array, Sequence[Vector]]]:
            for block in blocks():
                for row in np.flatnonzero(block.positions % stride == 0).tolist():
                    checks[int(block.positions[row])] = vector_sha256(block.vectors[row])
                yield block.positions, block.vectors

        log.info("loading %d rows into collection %s at %s", rows, name, self._uri)
        collection.load(vectors(), rows)
        description = {
            "collection": name,
            "rows": rows,
            "dimension": dimension,
            "index": self._index(dimension),
            "checks": checks,
        }
        _compare(collection, checks)
        (folder / COLLECTION).write_text(json.dumps(description, indent=1), encoding="utf-8")

    def open(self, folder: Path) -> Collection:
        """The collection of `folder`. IndexFolderError if it is missing, has other rows, or another index."""
        description = parse_json((folder / COLLECTION).read_bytes())
        dimension = description["dimension"]
        if description["index"] != self._index(dimension):
            raise IndexFolderError(
                f"collection {description['collection']} was built with {description['index']}; env.milvus says "
                f"{self._index(dimension)}. Build it again (querylect index build --overwrite), or set it as it was.",
                code="other-settings",
            )
        sizes = _sizes(folder, dimension)
        collection = Collection(self._config, self._uri, description["collection"], dimension, sizes)
        collection.open()
        if (count := collection.count()) != description["rows"]:
            raise IndexFolderError(
                f"collection {collection.name} at {self._uri} holds {count} rows; the index says "
                f"{description['rows']}. Load it again: querylect index build --overwrite.",
                code="other-content",
            )
        _compare(collection, {int(position): value for position, value in description["checks"].items()})
        return collection

    def _index(self, dimension: int | None) -> list[object]:
        return [self._config.index_type, dict(self._config.index_params)] if dimension else ["SPARSE_INVERTED_INDEX"]


def _sizes(folder: Path, dimension: int | None) -> Array:
    """Bytes of the largest vectors, as `Collection` takes them."""
    return dense_sizes(dimension) if dimension else np.load(folder / _SIZES, allow_pickle=False)


def _compare(collection: Collection, checks: dict[int, str]) -> None:
    stored = collection.vectors(list(checks))
    differs = [
        position
        for position, value in checks.items()
        if position not in stored or vector_sha256(stored[position]) != value
    ]
    if differs:
        raise IndexFolderError(
            f"collection {collection.name} at {collection.uri} has another vector at row {differs[0]} than was loaded. "
            "Drop it and load it again: querylect index build --overwrite.",
            code="other-content",
        )


class MilvusDense(EncodedKind):
    """Dense retrieval; the encoder and the parts are those of the local index."""

    def __init__(self, recipe: RetrieverRecipe, config: EnvironmentConfig) -> None:
        super().__init__(recipe, config.vectors, config.encoder_device)
        self._loader = _Loader(config)

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Load the vectors of all parts."""
        pieces = [mapped(part / VECTORS) for part in parts]

        def blocks() -> Iterator[_Block]:
            base = 0
            for piece in pieces:
                vectors = np.asarray(piece, dtype=np.float32)
                yield _Block(np.arange(base, base + len(piece)), list(vectors), (vectors,))
                base += len(piece)

        self._loader.load(folder, self.recipe, int(pieces[0].shape[1]), blocks)

    def load(self, folder: Path, documents: Sized) -> "MilvusVectors":
        """Open the collection."""
        return MilvusVectors(self._loader.open(folder), self.encoder, len(documents))


class MilvusVectors(VectorRetriever):
    """Searches a collection, which returns the stored vectors of its candidates."""

    def __init__(self, collection: Collection, encoder: Encoder, documents: int) -> None:
        super().__init__(encoder)
        self._collection, self._documents = collection, documents

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """As `VectorRetriever.rank`. Raises RequestError for more documents than Milvus returns."""
        check_limits(limits, self._documents)
        return super().rank(probes, limits)

    def _candidates(self, vectors: npt.NDArray[np.float64], limits: Sequence[int]) -> Iterator[Unranked]:
        answers = self._collection.search(list(vectors.astype(np.float32)), max(limits) + SPARE)
        for vector, hits in zip(vectors, answers, strict=True):
            stored = np.stack([np.asarray(hit.vector, dtype=np.float32) for hit in hits])
            yield _positions(hits), scored_again(stored, vector)


class MilvusBm25(Bm25Kind):
    """BM25; words, counts, weights and parts are those of the local index."""

    def __init__(self, recipe: RetrieverRecipe, config: EnvironmentConfig) -> None:
        super().__init__(recipe, "bm25s")
        self._loader = _Loader(config)

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Load a sparse vector per document with a word; the folder keeps the words and their frequencies."""
        sizes, lengths = join_lengths(parts, folder)
        words, word_ids = postings.join_words(parts, folder)
        frequencies = postings.frequencies(parts, word_ids, words)
        np.save(folder / _FREQUENCIES, frequencies)
        np.save(folder / _SIZES, largest_sizes([np.bincount(mapped(part / postings.INDICES)) for part in parts]))
        weigh = lucene(lengths)

        def blocks() -> Iterator[_Block]:
            base = 0
            for part, ids, size in zip(parts, word_ids, sizes, strict=True):
                word = np.repeat(ids, np.diff(mapped(part / postings.INDPTR)))
                document = np.asarray(mapped(part / postings.INDICES), dtype=np.int64)
                weights = weigh(frequencies[word], document + base, mapped(part / postings.DATA))
                order = np.lexsort((word, document))
                document, word, weights = document[order], word[order], weights[order]
                rows = np.unique(document)
                starts = np.append(np.searchsorted(document, rows), len(document))
                if len(rows):
                    yield _Block(rows + base, _dictionaries(starts, word, weights), (np.diff(starts), word, weights))
                base += size

        self._loader.load(folder, self.recipe, None, blocks)

    def load(self, folder: Path, documents: Sized) -> "MilvusWords":
        """Open the collection, and the words."""
        return MilvusWords(self._loader.open(folder), folder, len(documents))


class MilvusWords:
    """Ranks probes by Σ wᵢ·BM25(tᵢ)."""

    def __init__(self, collection: Collection, folder: Path, documents: int) -> None:
        self._collection, self._documents = collection, documents
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
                    candidates[row] = Candidates(_positions(hits), scores, bound)
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
            f"a plan asks for {max(limits)} documents; Milvus returns at most {MAX_RESULTS}. Ask for fewer.",
            code="beyond-depth",
        )


def _positions(hits: Sequence[StoredHit]) -> Array:
    return np.array([hit.position for hit in hits], dtype=np.int64)
