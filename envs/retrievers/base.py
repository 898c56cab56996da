"""Retrievers and their factories.

A factory turns the corpus into files, block by block, and opens them as a retriever. A retriever ranks probes. The
ranking of a probe must not depend on the batch or on the number of requested documents.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from cachetools import LRUCache

from ...configs.schema import EnvironmentConfig
from ...data.types import Document
from ...errors import RequestError
from ...logs import Progress as Progress
from ..index.documents import Documents
from ..index.meta import Index
from ..plan import Probe
from ..presets import RetrieverPreset
from .fusion import Scored

Key = TypeVar("Key")
Value = TypeVar("Value")

SPARE = 16
"""Documents that a search gets beyond its limit, so that equal scores at the end are in corpus order."""


class Retriever(Protocol):
    """Ranks probes over one corpus. It may also have what `truncation_of` and `depth_limit_of` look for."""

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents."""


def truncation_of(retriever: Retriever) -> Callable[[Probe], int]:
    """The retriever's `truncated`, which counts the texts of a probe that are longer than a query may be; 0 for a
    retriever without such a limit."""
    count: Callable[[Probe], int] = getattr(retriever, "truncated", lambda probe: 0)
    return count


def depth_limit_of(retriever: Retriever) -> int | None:
    """The retriever's `depth_limit`, the most documents that it ranks for a probe; None for one without a limit."""
    limit: int | None = getattr(retriever, "depth_limit", None)
    return limit


class RetrieverFactory:
    """One kind of retriever with its models. This one keeps nothing of the corpus in its index folder."""

    preset: RetrieverPreset
    """With every field filled in that was left to the model."""
    fingerprint: str | None = None
    """Identifies what an index must have been built with: models, code, other indexes; None for BM25."""

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None = None) -> None:
        """Write what `merge` needs of one block of the corpus."""

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Merge the parts, given in corpus order, into what `load` needs: .npy arrays and JSON, no pickles."""

    def load(self, folder: Path, documents: Documents) -> Retriever:
        """Open what `merge` wrote. Rankings use the positions of `documents`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SearchedIndex:
    """Another index that a retriever searches."""

    index: Index
    config: EnvironmentConfig
    open: Callable[[], Retriever]


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
