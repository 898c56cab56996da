"""What a rewriter knows about its retriever."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import ConfigError

KINDS = ("bm25", "dense", "fts5", "postgres", "tantivy", "hybrid", "questions", "custom")


@dataclass(frozen=True, slots=True)
class RetrieverInfo:
    """A retriever as rewriters see it. Raises ConfigError for an unknown kind."""

    name: str
    """The name of its recipe, model or service."""
    kind: str
    """One of KINDS."""
    trained: str = ""
    """What it is and how it was trained, for the sentence "Documents are found by …"; "" if unknown."""
    frequent_terms: tuple[str, ...] = ()
    """BM25: the stemmed words that occur in more than a tenth of the documents; RM3 adds none of them."""
    language: str = "english"
    """BM25: of the stemmer and stop words."""
    query_language: str = ""
    """The rules of its query language; "" without one."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"the retriever {self.name!r} is of kind {self.kind!r}; rewriters know {', '.join(KINDS)}. "
                "Serve a retriever of a known kind, from a querylect environment of this version."
            )

    @classmethod
    def from_service(cls, info: Mapping[str, Any]) -> Self:
        """The description in the answer of `GET /v1/environment`; its other entries are ignored."""
        name, kind, trained = (str(info.get(key) or "") for key in ("name", "kind", "trained"))
        frequent_terms, language = tuple(info.get("frequent_terms") or ()), info.get("language") or "english"
        return cls(name, kind, trained, frequent_terms, language, str(info.get("query_language") or ""))
