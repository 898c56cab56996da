"""What a rewriter knows about its retriever."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import ConfigError

KINDS = ("bm25", "dense", "hybrid", "questions", "custom")


@dataclass(frozen=True, slots=True)
class RetrieverInfo:
    """A retriever as rewriters see it. Raises ConfigError for an unknown kind."""

    name: str
    """The name of its recipe, model or service."""
    kind: str
    """`bm25`, `dense`, `hybrid`, `questions` or `custom`."""
    trained: str = ""
    """What it is and how it was trained, for the sentence "Documents are found by …"; "" if unknown."""
    frequent_terms: tuple[str, ...] = ()
    """BM25: the stemmed words that occur in more than a tenth of the documents; RM3 adds none of them."""
    language: str = "english"
    """BM25: of the stemmer and stop words."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"the retriever {self.name!r} is of kind {self.kind!r}; rewriters know {', '.join(KINDS)}. "
                "Serve a retriever of a known kind."
            )

    @classmethod
    def from_service(cls, info: Mapping[str, Any]) -> Self:
        """The description in the answer of `GET /v1/environment`; its other entries are ignored."""
        missing = [key for key in ("name", "kind") if not isinstance(info.get(key), str)]
        if missing:
            raise ConfigError(
                f"the environment describes a retriever without a {' and a '.join(missing)} (it says {dict(info)!r}). "
                "Check that the URL is a querylect environment of this version."
            )
        frequent = tuple(map(str, info.get("frequent_terms") or ()))
        return cls(
            info["name"], info["kind"], str(info.get("trained") or ""), frequent, info.get("language") or "english"
        )
