"""Data types of retrieval evaluation: document, question, qrels, split, dataset.

A *question* is what the user asks; a *query* is what a retriever gets. Queries do not occur here. Across several
environments a question has a mixed id, `NAME/ID`: the name of an environment contains no slash, the id may.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, StringConstraints

Qrels = Mapping[str, Mapping[str, int]]
"""question id → document id → grade: relevant above 0, judged and not relevant at 0 or less, not judged if absent."""
SPLITS = ("train", "validation", "test")
"""In ascending order: a question of two splits belongs to the later one."""


@dataclass(frozen=True, slots=True)
class Document:
    """One retrievable unit of the corpus."""

    id: str
    title: str
    text: str
    date: str = field(default="", compare=False)
    """As ISO 8601 writes it, so that dates are ordered as texts; "" without one. Only an index reads it."""

    @property
    def contents(self) -> str:
        """Title and text as one string: what every retriever indexes."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one side said in a conversation."""

    role: Literal["user", "assistant"]
    text: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1),
        Field(validation_alias=AliasChoices("text", "content")),
    ]
    """`content` in data too, as chat APIs call it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A user's question, with answer options in a multiple-choice dataset, and what was said before it."""

    id: str
    text: str
    options: tuple[str, ...] = ()
    history: tuple[Utterance, ...] = ()
    """The conversation before the question, oldest utterance first; empty for a question that stands alone."""
    reference_rewrite: str = ""
    """The question as the dataset words it without its history; "" without one. Only evaluation reads it."""
    excluded: tuple[str, ...] = ()
    """Ids of documents that are left out of the question's rankings, as if the corpus did not hold them."""

    @property
    def in_context(self) -> str:
        """The texts of the history and the question, joined by spaces; the question alone without a history."""
        return " ".join([*(utterance.text for utterance in self.history), self.text])


@dataclass(frozen=True, slots=True)
class Split:
    """Questions that have at least one relevant document, or right answers only, and their judgements."""

    questions: Sequence[Question]
    qrels: Qrels

    @property
    def relevant(self) -> int:
        """The number of judgements above 0."""
        return sum(len(relevant(judged)) for judged in self.qrels.values())

    def relevance_level(self, of_dataset: int) -> int:
        """The least grade that binary metrics count here: the dataset's, or the highest grade where all are lower."""
        if of_dataset == 1:
            return 1
        return min(of_dataset, max((grade for judged in self.qrels.values() for grade in judged.values()), default=1))


def relevant(judged: Mapping[str, int]) -> dict[str, int]:
    """The documents of one question with a grade above 0."""
    return {document: grade for document, grade in judged.items() if grade > 0}


class AllDocuments:
    """Contains every document id; for reading questions without their corpus."""

    def __contains__(self, _: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Dataset:
    """A corpus and its named splits ("train", "validation", "test")."""

    name: str
    corpus: Sequence[Document] = field(repr=False)
    splits: Mapping[str, Split] = field(repr=False)
    notes: Sequence[str] = ()
    """What was skipped or counted while loading; shown to the user once."""
    licence: str = ""
    """Licence and citation of the source, carried into reports and indexes."""
    ignore_identical_ids: bool = False
    """Whether a document with the id of the question is left out of its ranking, as in BEIR's own evaluation: in
    ArguAna the question is itself a document of the corpus."""
    relevance_level: int = 1
    """The least grade that binary metrics (recall, MRR, MAP, …) count as relevant in a split that has it
    (`Split.relevance_level`)."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A published benchmark on its way into a BEIR folder."""

    name: str
    documents: Callable[[], Iterable[Document]]
    """The corpus from its start, in a fixed order."""
    questions: Mapping[str, Question] = field(default_factory=dict)
    qrels: Mapping[str, Qrels] = field(default_factory=dict)
    """By split; judgements of questions and documents that do not exist are dropped when it is written."""
    notes: Sequence[str] = ()
    """What was left out or joined."""
    licence: str = ""


def split_id(mixed_id: str) -> tuple[str, str]:
    """Environment name and question id of a mixed id."""
    environment, _, question_id = mixed_id.partition("/")
    return environment, question_id


def joined(environment: str, questions: Sequence[Question]) -> list[Question]:
    """The questions of one environment under their mixed ids."""
    return [replace(question, id=f"{environment}/{question.id}") for question in questions]
