"""Data types of retrieval evaluation: document, question, qrels, split, dataset.

A *question* is what the user asks; a *query* is what a retriever gets. Queries do not occur here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Qrels = Mapping[str, Mapping[str, int]]
"""question id → document id → grade (an integer > 0; an absent pair is not relevant)."""


@dataclass(frozen=True, slots=True)
class Document:
    """One retrievable unit of the corpus."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title and text as one string: what every retriever indexes."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Question:
    """A user's question, with answer options in a multiple-choice dataset."""

    id: str
    text: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """Questions that have at least one judgement, and the judgements."""

    questions: Sequence[Question]
    qrels: Qrels


@dataclass(frozen=True, slots=True)
class Dataset:
    """A corpus and its named splits ("train", "validation", "test")."""

    name: str
    corpus: Sequence[Document]
    splits: Mapping[str, Split]
    notes: Sequence[str] = field(default=())
    """What was skipped or counted while loading; shown to the user once."""
    licence: str = ""
    """Licence and citation of the source, carried into reports and indexes."""
    ignore_identical_ids: bool = False
    """Whether a document with the id of the question is left out of its ranking, as in BEIR's own evaluation: in
    ArguAna the question is itself a document of the corpus."""
