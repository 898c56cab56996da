"""A benchmark as it is published, on its way to a dataset in memory or to a BEIR folder.

A reader gives the judged questions at once and the documents one at a time, as often as asked, so that a corpus that
does not fit into memory can be written out or embedded in blocks. Whatever the form: ids are unique, every judged
document is in the corpus, and no question of a training split has the id or the words of one that is tested on.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..configs.schema import DatasetConfig
from ..errors import DataError
from .leakage import without_leaks
from .types import Dataset, Document, Split


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Questions with their judgements, and a corpus that is read when it is needed."""

    name: str
    documents: Callable[[], Iterator[Document]]
    """The corpus from its start, in a fixed order. Raises DataError for a document that is none."""
    splits: Mapping[str, Split]
    about: Mapping[str, Any]
    """What it was made from and how, for meta.json: kind, source, what was pooled, …"""
    notes: Sequence[str] = field(default=())
    licence: str = ""
    ignore_identical_ids: bool = False
    may_lack_documents: bool = False
    """Whether judgements of documents that the corpus does not hold are dropped and counted, not refused."""


def open_benchmark(config: DatasetConfig) -> Benchmark:
    """The benchmark of settings of a published form, without leaks from its training split.

    Raises DataError where it is missing, incomplete or inconsistent.
    """
    assert config.path is not None, "DatasetConfig demands a path for every published form"
    if config.kind == "ragbench":
        from .ragbench import open_ragbench

        found = open_ragbench(config.path, config.parts, config.positives)
    elif config.kind == "finagentbench":
        from .finagentbench import open_finagentbench

        found = open_finagentbench(config.path, config.task)
    elif config.kind == "mteb":
        from .hub_tables import open_tables

        found = open_tables(config.path, config.subset)
    else:
        from .ir_datasets import open_ir_datasets

        found = open_ir_datasets(config.path)
    splits, notes = without_leaks(found.name, found.splits)
    return replace(found, splits=splits, notes=(*found.notes, *notes))


def load_benchmark(benchmark: Benchmark) -> Dataset:
    """The benchmark with its whole corpus in memory.

    Raises DataError for an empty corpus, an id that stands twice, and a judged document that the corpus lacks.
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
    )


def unique(benchmark: Benchmark) -> Iterator[Document]:
    """The documents, one at a time. Raises DataError for an id that stands twice, and where there is no document."""
    seen: set[str] = set()
    for document in benchmark.documents():
        if document.id in seen:
            raise DataError(
                f"{benchmark.name}: two documents have the id {document.id!r}; ids must be unique. Remove one of them, "
                "or fetch the files again."
            )
        seen.add(document.id)
        yield document
    if not seen:
        raise DataError(f"{benchmark.name}: the corpus holds no document. Fetch its files again.")


def judged_within(benchmark: Benchmark, documents: Container[str]) -> tuple[dict[str, Split], list[str]]:
    """The splits, and notes on what was dropped: judgements of documents that the corpus does not hold.

    Raises DataError where they may not be dropped, and where a split has no question left.
    """
    kept: dict[str, Split] = {}
    notes: list[str] = []
    for name, split in benchmark.splits.items():
        lacking = [
            (question, document)
            for question, judged in split.qrels.items()
            for document in judged
            if document not in documents
        ]
        if not lacking:
            kept[name] = split
            continue
        said = f"{benchmark.name}, {name}: {len(lacking)} judged documents, {lacking[0][1]!r} among them, are not in "
        if not benchmark.may_lack_documents:
            raise DataError(f"{said}the corpus: the files do not belong together. Fetch them again.")
        gone = set(lacking)
        qrels = {
            question: found
            for question, judged in split.qrels.items()
            if (found := {name: grade for name, grade in judged.items() if (question, name) not in gone})
        }
        if not qrels:
            raise DataError(f"{said}the corpus, so that no question is left. Fetch it again.")
        kept[name] = Split([question for question in split.questions if question.id in qrels], qrels)
        notes.append(
            f"{said}the corpus and are dropped, with {len(split.questions) - len(qrels)} questions that had no other."
        )
    return kept, notes


def splits_of(
    name: str, questions: Mapping[str, Any], qrels: Mapping[str, Mapping[str, Mapping[str, int]]], notes: list[str]
) -> dict[str, Split]:
    """Splits of the questions (id → Question) that have a relevant document, in the order of `questions`.

    `qrels`: split → question id → document id → grade; grades of 0 or less are dropped. What is left out is told in
    `notes`. Raises DataError where no split has a question.
    """
    splits: dict[str, Split] = {}
    for split in ("train", "validation", "test"):
        judged = {
            question: relevant
            for question, grades in qrels.get(split, {}).items()
            if (relevant := {document: grade for document, grade in grades.items() if grade > 0})
        }
        without = len(qrels.get(split, {})) - len(judged)
        if without:
            notes.append(f"{name}, {split}: {without} questions have no relevant document and are skipped.")
        if judged:
            splits[split] = Split(tuple(question for key, question in questions.items() if key in judged), judged)
    if not splits:
        raise DataError(f"{name}: no question has a relevant document; expected at least one. Fetch its files again.")
    return splits
