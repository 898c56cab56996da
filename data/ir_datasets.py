"""Datasets of the catalogue ir_datasets (MacAvaney et al. 2021), an optional library that downloads its own files.

An id with judgements, such as `beir/scifact/test`, gives the split that its last part names, or else test. An id
without judgements, such as `beir/scifact`, gives those of its /train, /dev and /test that exist.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from ..errors import DataError, DownloadError
from ..sources import optional_packages
from .benchmark import Benchmark, relevance_level_of, splits_of
from .rows import grade_of
from .types import Document, Question

if TYPE_CHECKING:
    import ir_datasets

Item = TypeVar("Item")

_SPLITS = {"train": "train", "dev": "validation", "validation": "validation", "valid": "validation", "test": "test"}


def open_ir_datasets(identifier: str) -> Benchmark:
    """Read the questions and judgements of an id; documents are read on demand.

    Raises DataError for an unknown id, and for an id without documents, questions or judgements; DownloadError if its
    files cannot be fetched; MissingPackageError if the library is not installed.
    """
    splits = _split_ids(identifier)
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    for split, name in splits.items():
        dataset = _load(name)
        for number, query in enumerate(_iterate(name, dataset.queries_iter), start=1):
            text = query.default_text()
            if not text.strip():
                raise DataError(f"{name}, question {number} ({query.query_id!r}) has no text.")
            questions.setdefault(str(query.query_id), Question(str(query.query_id), text))
        judged = qrels.setdefault(split, {})
        for number, qrel in enumerate(_iterate(name, dataset.qrels_iter), start=1):
            grades = judged.setdefault(str(qrel.query_id), {})
            grade = grade_of(qrel.relevance, Path(name), number)
            grades[str(qrel.doc_id)] = max(grade, grades.get(str(qrel.doc_id), grade))
    first = next(iter(splits.values()))
    notes: list[str] = []
    base, _, last = identifier.rpartition("/")
    return Benchmark(
        name=base if base and last in _SPLITS else identifier,
        documents=lambda: _documents(first, _load(first)),
        splits=splits_of(identifier, questions, qrels, notes),
        about={"kind": "ir_datasets", "id": identifier, "splits": splits},
        notes=tuple(notes),
        licence=f"See https://ir-datasets.com/{identifier.partition('/')[0]}.html",
        ignore_identical_ids=identifier.startswith("beir/"),
        relevance_level=relevance_level_of(identifier),
    )


def _library() -> ModuleType:
    with optional_packages("ir-datasets"):
        library = import_module("ir_datasets")
    return library


def _split_ids(identifier: str) -> dict[str, str]:
    """Split → id."""
    dataset, library = _load(identifier), _library()
    if not dataset.has_docs():
        raise DataError(f"{identifier!r} of ir_datasets has no documents. Choose an id that has.")
    if dataset.has_qrels():
        if not dataset.has_queries():
            raise DataError(
                f"{identifier!r} of ir_datasets has judgements and no questions. Choose an id that has both."
            )
        return {_SPLITS.get(identifier.rpartition("/")[2], "test"): identifier}
    ids: dict[str, str] = {}
    for suffix, split in _SPLITS.items():
        name = f"{identifier}/{suffix}"
        if name in library.registry and split not in ids:
            subset = library.load(name)
            if subset.has_qrels() and subset.has_queries():
                ids[split] = name
    if not ids:
        raise DataError(f"{identifier!r} of ir_datasets has no judgements, nor have its splits. Choose an id that has.")
    return ids


def _load(name: str) -> "ir_datasets.Dataset":
    try:
        return _library().load(name)
    except KeyError:
        raise DataError(f"ir_datasets knows no {name!r}. Its ids are at https://ir-datasets.com.") from None


def _iterate(name: str, iterate: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    try:
        yield from iterate()
    except OSError as error:
        raise DownloadError(
            f"ir_datasets could not fetch {name!r} ({error}). Try again with a connection; what has arrived is kept."
        ) from error


def _documents(name: str, dataset: "ir_datasets.Dataset") -> Iterator[Document]:
    for document in _iterate(name, dataset.docs_iter):
        title = getattr(document, "title", "")
        text = document.default_text()
        if title and text.startswith(title):
            text = text[len(title) :].lstrip()
        yield Document(str(document.doc_id), title or "", text)
