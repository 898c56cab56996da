"""A published benchmark before it becomes a dataset in memory or a BEIR folder.

Readers load all judged questions at once, but stream the documents, as often as needed, so that a corpus larger than
memory can be written or embedded in blocks. In every form, ids are unique, every judged document is in the corpus, and
no training question has the id or the words of a test question.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import DataError
from .types import Dataset, Document, Question, Split, relevant


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Questions with their judgements, and a corpus that is read on demand."""

    name: str
    documents: Callable[[], Iterator[Document]]
    """Iterates over the corpus from its start, in a fixed order. Raises DataError for an invalid document."""
    splits: Mapping[str, Split]
    about: Mapping[str, object]
    """How it was made, for meta.json: kind, source, parts, …"""
    notes: Sequence[str] = field(default=())
    licence: str = ""
    ignore_identical_ids: bool = False
    relevance_level: int = 1
    """The least grade that binary metrics count as relevant."""
    may_lack_documents: bool = False
    """Whether judgements of documents missing from the corpus are dropped and counted instead of refused."""


def load_benchmark(benchmark: Benchmark) -> Dataset:
    """The benchmark with its whole corpus in memory.

    Raises DataError for an empty corpus, a duplicate id, and a judged document that is not in the corpus.
    """
    corpus = tuple(unique(benchmark))
    splits, notes = judged_within(benchmark, {document.id for document in corpus})
    return Dataset(
        name=benchmark.name,
        corpus=corpus,
        splits=splits,
        notes=(*benchmark.notes, *notes),
        licence=benchmark.licence,
        ignore_identical_ids=benchmark.ignore_identical_ids,
        relevance_level=benchmark.relevance_level,
    )


def unique(benchmark: Benchmark) -> Iterator[Document]:
    """Yield the documents. Raises DataError for a duplicate id, and if there is no document."""
    ids: set[str] = set()
    for document in benchmark.documents():
        if document.id in ids:
            raise DataError(
                f"{benchmark.name}: two documents have the id {document.id!r}; ids must be unique. Remove one of them, "
                "or fetch the files again.",
                code="duplicate-id",
            )
        ids.add(document.id)
        yield document
    if not ids:
        raise DataError(f"{benchmark.name}: the corpus holds no document. Fetch its files again.", code="no-documents")


def judged_within(benchmark: Benchmark, documents: Container[str]) -> tuple[dict[str, Split], list[str]]:
    """The splits without judgements of documents missing from the corpus, and notes on what was dropped.

    Raises DataError unless `may_lack_documents`, and if a split has no question left. A missing document with a grade
    of 0 or less is dropped without a word: no metric of a ranking of this corpus can depend on it.
    """
    splits: dict[str, Split] = {}
    notes: list[str] = []
    for name, split in benchmark.splits.items():
        present = {
            question: {document: grade for document, grade in judged.items() if document in documents}
            for question, judged in split.qrels.items()
        }
        missing = [
            (question, document)
            for question, judged in split.qrels.items()
            for document in relevant(judged)
            if document not in present[question]
        ]
        if not missing:
            splits[name] = Split(split.questions, present)
            continue
        message = (
            f"{benchmark.name}, {name}: {len(missing)} judged documents, {missing[0][1]!r} among them, are not in "
        )
        if not benchmark.may_lack_documents:
            raise DataError(
                f"{message}the corpus: the files do not belong together. Fetch them again.", code="unknown-document"
            )
        qrels = {question: judged for question, judged in present.items() if relevant(judged)}
        if not qrels:
            raise DataError(f"{message}the corpus, so that no question is left. Fetch it again.", code="no-questions")
        splits[name] = Split([question for question in split.questions if question.id in qrels], qrels)
        notes.append(
            f"{message}the corpus and are dropped, with {len(split.questions) - len(qrels)} questions that had no "
            "other."
        )
    return splits, notes


def splits_of(
    name: str, questions: Mapping[str, Question], qrels: Mapping[str, Mapping[str, Mapping[str, int]]], notes: list[str]
) -> dict[str, Split]:
    """Splits of the questions (id → Question) that have a relevant document, in the order of `questions`.

    `qrels`: split → question id → document id → grade. Notes on what is left out are appended
    to `notes`. Raises DataError if no split has a question.
    """
    splits: dict[str, Split] = {}
    for split in ("train", "validation", "test"):
        judged = {question: grades for question, grades in qrels.get(split, {}).items() if relevant(grades)}
        skipped = len(qrels.get(split, {})) - len(judged)
        if skipped:
            notes.append(f"{name}, {split}: {skipped} questions have no relevant document and are skipped.")
        if judged:
            splits[split] = Split(tuple(question for key, question in questions.items() if key in judged), judged)
    if not splits:
        raise DataError(
            f"{name}: no question has a relevant document; expected at least one. Fetch its files again.",
            code="no-relevant-documents",
        )
    return splits
