"""One environment: retriever × corpus × questions × qrels. It ranks plans and says what a ranking is worth.

Qrels stay inside: a caller gets questions, documents, rankings and metric values, never a judgement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..configs.schema import EnvironmentConfig
from ..data.types import Document, Question
from .plan import SearchPlan


@dataclass(frozen=True, slots=True)
class RankedHit:
    """One place of a ranking: a document id and its score, higher is better."""

    id: str
    score: float


Ranking = list[RankedHit]
"""Best first, no document twice."""


class Environment:
    """An opened environment. Not thread-safe: one thread at a time may call `search`."""

    name: str
    card: dict[str, Any]
    """How the retriever works, for prompts and clients: name, kind, trained, query_template, …"""
    corpus_size: int
    corpus_hash: str
    index_hash: str
    gain: str
    splits: Mapping[str, int]
    """Number of questions by split."""

    @classmethod
    def open(cls, config: EnvironmentConfig) -> "Environment":
        """Load the dataset and open and verify its index.

        Raises DataError for the dataset, ModelError for the encoder, IndexFolderError where the index folder is
        missing, corrupt, or was built from another corpus or for another retriever.
        """
        raise NotImplementedError

    def questions(self, split: str, offset: int = 0, limit: int | None = None) -> list[Question]:
        """Questions of a split in their fixed order. RequestError for an unknown split."""
        raise NotImplementedError

    def document(self, doc_id: str) -> Document:
        """The document of that id. KeyError where the corpus has none."""
        raise NotImplementedError

    def search(self, plans: Sequence[SearchPlan]) -> list[Ranking]:
        """Rank every plan; one batch for the retriever. RequestError for a plan with an unknown `source`."""
        raise NotImplementedError

    def score(self, question_id: str, ranking: Ranking, metrics: Sequence[str]) -> dict[str, float]:
        """Value of each metric for a question's ranking. KeyError for an unknown question, RequestError for an
        unknown metric."""
        raise NotImplementedError
