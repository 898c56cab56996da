"""What a retriever is, and rankings and their fusion.

A factory turns the corpus into files, block by block, and opens them as a retriever, which ranks probes. To add a kind:
subclass both here, name the factory in `factories` (open.py), and give it a preset (presets.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from ...configs.schema import EnvironmentConfig
from ...data.types import Document
from ...errors import RequestError
from ...logs import Progress as Progress
from ..index import Documents, Index
from ..plan import RRF_CONSTANT, Fusion, Probe
from ..presets import RetrieverPreset

Key = TypeVar("Key")
Value = TypeVar("Value")

SPARE = 16
"""Documents that a search gets beyond its limit, so that equal scores at the end are in corpus order."""


class Scored(NamedTuple):
    """One ranking, best first: corpus positions (n,) int64 and their scores (n,) float64; equal scores in corpus
    order, with a query language in that of LanguageFactory.by_date or of the service."""

    documents: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]

    def cut(self, k: int) -> "Scored":
        """The first k documents."""
        return Scored(self.documents[:k], self.scores[:k])

    def without(self, documents: Sequence[int]) -> "Scored":
        """The ranking as if the corpus did not hold these documents."""
        if not documents:
            return self
        mask = np.isin(self.documents, documents, invert=True)
        return Scored(self.documents[mask], self.scores[mask])


NOTHING = Scored(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))
"""The empty ranking."""


class Retriever(ABC):
    """Ranks probes over one corpus."""

    depth_limit: int | None = None
    """Most documents that it ranks for a probe; None without a limit."""
    frequent_terms: Sequence[str] | None = None
    """Of BM25: the stemmed words that occur in many documents, with which RM3 expands no query."""

    @abstractmethod
    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents. It must not depend on the batch or on the limit."""

    def truncated(self, probe: Probe) -> int:
        """How many texts of a probe are longer than a query may be, and are read only in part."""
        return 0


@dataclass(frozen=True, slots=True)
class SearchedIndex:
    """Another index that a retriever searches."""

    index: Index
    config: EnvironmentConfig
    open: Callable[[], Retriever]


class RetrieverFactory:
    """One kind of retriever with its models. This one keeps nothing of the corpus in its index folder."""

    def __init__(
        self, preset: RetrieverPreset, config: EnvironmentConfig, members: Sequence[SearchedIndex] = ()
    ) -> None:
        """`members`: the indexes of `required_indexes`. Raises ConfigError, ModelError or IndexFolderError."""
        self._preset, self.config, self.members = preset, config, members

    @property
    def preset(self) -> RetrieverPreset:
        """With every field filled in that was left to the model."""
        return self._preset

    @property
    def fingerprint(self) -> str | None:
        """Identifies what an index must have been built with: models, code, other indexes; None for BM25."""
        return None

    @property
    def settings(self) -> dict[str, object]:
        """What the files and rankings of an index depend on besides the corpus."""
        weights = {} if self.fingerprint is None else {"weights": self.fingerprint}
        return self.preset.content() | weights

    @classmethod
    def query_language(cls, config: EnvironmentConfig) -> str:
        """The query language in about five lines, for prompts, and in a last line the order in which hits are listed;
        "" without one. The retriever is then a LanguageRetriever."""
        return ""

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None = None) -> None:
        """Write what `merge` needs of one block of the corpus."""

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Merge the parts, given in corpus order, into what `load` needs: .npy arrays and JSON, no pickles."""

    def load(self, folder: Path, documents: Documents) -> Retriever:
        """Open what `merge` wrote. Rankings use the positions of `documents`."""
        raise NotImplementedError


def best(documents: npt.NDArray[np.int64], scores: npt.NDArray[np.float64], k: int) -> Scored:
    """The k best of the scored documents (both of shape (n,)), equal scores in corpus order."""
    if len(scores) > k:
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        candidates = np.flatnonzero(scores >= threshold)
        documents, scores = documents[candidates], scores[candidates]
    order = np.lexsort((documents, -scores))[:k]
    return Scored(documents[order], scores[order])


def fuse(rankings: Sequence[Scored], method: Fusion, k: int) -> Scored:
    """Fuse rankings into one of at most k distinct documents.

    - max: a document's best score in any ranking.
    - sum: the sum of its scores; a ranking without it adds nothing.
    - rrf: Σ 1 / (60 + rank); scores are ignored.
    - interleave: the first document of every ranking in order, then the second, …, duplicates skipped; the score is
      1 / rank, so that it falls with the rank and carries no other information.

    Ties are broken by the best rank in any of the rankings, then by the earlier ranking. The rankings are used in full:
    cut each to its allowed depth first.
    """
    if len(rankings) == 1 and method in ("max", "sum"):
        return rankings[0].cut(k)
    columns = [ranking.documents.tolist() for ranking in rankings]
    depth = max(map(len, columns), default=0)
    in_turn = {column[rank]: None for rank in range(depth) for column in columns if rank < len(column)}
    if method == "interleave":
        values = {document: 1.0 / rank for rank, document in enumerate(in_turn, start=1)}
    else:
        values = {}
        for column, ranking in zip(columns, rankings, strict=True):
            for rank, (document, score) in enumerate(zip(column, ranking.scores.tolist(), strict=True), start=1):
                if method == "max":
                    values[document] = max(score, values.get(document, score))
                else:
                    added = score if method == "sum" else 1.0 / (RRF_CONSTANT + rank)
                    values[document] = values.get(document, 0.0) + added
    ordered = sorted(in_turn, key=lambda document: -values[document])[:k]
    return Scored(np.array(ordered, dtype=np.int64), np.array([values[document] for document in ordered]))


def check_depth(limits: Sequence[int], depth: int, documents: int, setting: str) -> None:
    """Raises RequestError if more documents are requested than a stage of limited depth can rank."""
    if limits and max(limits) > depth < documents:
        raise RequestError(
            f"a plan asks for {max(limits)} documents; this retriever ranks the best {depth}. "
            f"Ask for at most {depth}, or raise {setting}."
        )


def refuse_negative_weights(probes: Sequence[Probe], engine: str) -> None:
    """Raises RequestError for a term with a negative weight, which `engine` cannot search."""
    for term in (term for probe in probes for term in probe.terms):
        if term.weight < 0:
            raise RequestError(
                f"the text {term.text!r} has the weight {term.weight}, and {engine} takes no negative weights. Use the "
                "local bm25, or a dense retriever."
            )


def remembered(
    cache: LRUCache[Key, Value], keys: Iterable[Key], compute: Callable[[list[Key]], Sequence[Value]]
) -> dict[Key, Value]:
    """The value of every key; `compute` is called at most once, with the keys that the cache lacks, each once.

    Not thread-safe.
    """
    unique = dict.fromkeys(keys)
    values = {key: value for key in unique if (value := cache.get(key)) is not None}
    missing = [key for key in unique if key not in values]
    for key, value in zip(missing, compute(missing) if missing else (), strict=True):
        values[key] = cache[key] = value
    return values
