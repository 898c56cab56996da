"""A published benchmark before it becomes a dataset in memory or a BEIR folder.

Readers load all judged questions at once, but stream the documents, as often as needed, so that a corpus larger than
memory can be written or embedded in blocks. In every form, ids are unique, judgements of documents that the corpus
lacks are dropped and counted, and no training question has the id or the words of a test question.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import DataError
from .types import SPLITS, Dataset, Document, Qrels, Question, Split, relevant

_TREC_DL = re.compile(r"(?:beir/)?msmarco(?:/|$)", re.IGNORECASE)
"""TREC Deep Learning, passages; the test split of BEIR's MS MARCO is that of 2019."""


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


def relevance_level_of(name: str) -> int:
    """The level of a benchmark, by its name.

    2 for the passages of TREC Deep Learning, where grade 1 is "related" and binary metrics count 2 and 3 (Craswell et
    al. 2020), else 1.
    """
    return 2 if _TREC_DL.match(name) else 1


def load_benchmark(benchmark: Benchmark) -> Dataset:
    """The benchmark with its whole corpus in memory.

    Raises DataError for an empty corpus, for a duplicate id, and as `within_corpus`.
    """
    corpus = tuple(unique(benchmark))
    splits, notes = within_corpus(benchmark.name, benchmark.splits, {document.id for document in corpus})
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
                "or fetch the files again."
            )
        ids.add(document.id)
        yield document
    if not ids:
        raise DataError(f"{benchmark.name}: the corpus holds no document. Fetch its files again.")


def within_corpus(
    name: str, splits: Mapping[str, Split], documents: Container[str]
) -> tuple[dict[str, Split], list[str]]:
    """The splits without judgements of documents that are not in the corpus, and notes on what was dropped.

    Raises DataError where more than half of the relevant documents of a split are missing, because corpus and
    judgements then do not belong together.
    """
    restricted: dict[str, Split] = {}
    notes: list[str] = []
    for split_name, split in splits.items():
        judged = {(question, document) for question, grades in split.qrels.items() for document in grades}
        missing = {pair for pair in judged if pair[1] not in documents}
        if not missing:
            restricted[split_name] = split
            continue
        lost = [(question, document) for question, document in sorted(missing) if split.qrels[question][document] > 0]
        total = sum(len(relevant(grades)) for grades in split.qrels.values())
        if 2 * len(lost) > total:
            raise DataError(
                f"{name}, {split_name}: {len(lost)} of {total} relevant documents, {lost[0][1]!r} among them, are not "
                "in the corpus; expected at least half. Corpus and judgements do not belong together: fetch or copy "
                "them again, or take those judgements out."
            )
        qrels = {
            question: {document: grade for document, grade in grades.items() if (question, document) not in missing}
            for question, grades in split.qrels.items()
        }
        questions = tuple(question for question in split.questions if relevant(qrels[question.id]))
        restricted[split_name] = Split(questions, {question.id: qrels[question.id] for question in questions})
        notes.append(
            f"{name}, {split_name}: {len(missing)} of {len(judged)} judgements are dropped, {len(lost)} of them of "
            f"relevant documents: their documents are not in the corpus. {len(split.questions) - len(questions)} "
            "questions had no other relevant document and are left out."
        )
    return restricted, notes


def moved_judgements(qrels: Qrels, new_ids: Callable[[str], Iterable[str]]) -> dict[str, dict[str, int]]:
    """The judgements with the grade of each document moved to its `new_ids`; of several grades the highest counts."""
    moved: dict[str, dict[str, int]] = {}
    for question, judged in qrels.items():
        grades = moved.setdefault(question, {})
        for document, grade in judged.items():
            for new_id in new_ids(document):
                grades[new_id] = max(grade, grades.get(new_id, grade))
    return moved


def splits_of(
    name: str, questions: Mapping[str, Question], qrels: Mapping[str, Mapping[str, Mapping[str, int]]], notes: list[str]
) -> dict[str, Split]:
    """Splits of the questions (id → Question) that have a relevant document, in the order of `questions`.

    `qrels`: split → question id → document id → grade; grades of 0 or less are kept. Notes on what is left out are
    appended to `notes`. Raises DataError if no split has a question, or if more than half of the judged questions of a
    split do not exist.
    """
    splits: dict[str, Split] = {}
    for split in SPLITS:
        judged = qrels.get(split, {})
        unknown = [question for question in judged if question not in questions]
        if 2 * len(unknown) > len(judged):
            raise DataError(
                f"{name}, {split}: {len(unknown)} of {len(judged)} judged questions, {unknown[0]!r} among them, do not "
                "exist; expected at least half. Questions and judgements do not belong together: fetch or copy them "
                "again, or take those judgements out."
            )
        if unknown:
            notes.append(
                f"{name}, {split}: the judgements of {len(unknown)} of {len(judged)} questions are dropped, "
                f"{unknown[0]!r} among them: these questions do not exist."
            )
        with_relevant = {question: grades for question, grades in judged.items() if relevant(grades)}
        usable = tuple(question for identifier, question in questions.items() if identifier in with_relevant)
        if usable:
            splits[split] = Split(usable, {question.id: with_relevant[question.id] for question in usable})
    if not splits:
        raise DataError(
            f"{name}: no question has a relevant document (grade above 0); expected at least one. Look at the "
            "judgements, or fetch the files again."
        )
    skipped = len(questions.keys() - {question.id for split in splits.values() for question in split.questions})
    if skipped:
        notes.append(
            f"{name}: {skipped} of {len(questions)} questions have no relevant document in {', '.join(splits)} and are "
            "skipped."
        )
    return splits
