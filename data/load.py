"""Loads the dataset that settings describe; hashes a corpus."""

import hashlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ..configs.schema import DatasetConfig
from ..errors import DataError
from .beir import load_beir
from .leakage import read_left_out, without, without_leaks
from .packaged import dataset_folder
from .types import Dataset, Document, Split


def load_dataset(config: DatasetConfig, documents: Container[str] | None = None) -> Dataset:
    """Load the configured dataset; questions that a later split has are removed from the earlier ones, as published
    splits share some (SciFact: two test claims are in train). Notes say how many.

    With `documents`, the ids of its corpus, the corpus itself is not read. Raises DataError as `load_beir`.
    """
    dataset = load_beir(dataset_folder(config.path), documents=documents)
    splits, notes = _leave_out(dataset.name, dataset.splits, config.leave_out)
    splits, leaks = without_leaks(dataset.name, splits)
    return replace(dataset, splits=splits, notes=(*dataset.notes, *notes, *leaks))


def _leave_out(name: str, splits: Mapping[str, Split], file: str | None) -> tuple[Mapping[str, Split], list[str]]:
    """The splits without the questions that a file lists. Raises DataError if none of them exists."""
    if file is None:
        return splits, []
    path = Path(file).expanduser()
    listed = read_left_out(path)
    remaining = without(splits, listed)
    before, after = (sum(len(split.questions) for split in sides.values()) for sides in (splits, remaining))
    if listed and before == after:
        split, identifier = min(listed)
        raise DataError(
            f"{path} lists {len(listed)} questions, {identifier!r} of {split} among them, and {name} has none of them. "
            "Name its own file in dataset.leave_out, or remove the setting."
        )
    return remaining, [f"{name}: {before - after} of {before} questions are left out, as {path} says."]


def corpus_hash(corpus: Iterable[Document]) -> str:
    """sha256 (64 hex digits) of ids, titles and texts in corpus order; reads the documents one by one.

    Every field is preceded by its length in bytes, so that moving text between fields changes the hash.
    """
    digest = hashlib.sha256()
    for document in corpus:
        digest.update(document_record(document))
    return digest.hexdigest()


def document_record(document: Document) -> bytes:
    """Id, title and text of a document, each preceded by its length in 8 bytes (big-endian)."""
    fields = [text.encode("utf-8", "surrogatepass") for text in (document.id, document.title, document.text)]
    return b"".join(part for field in fields for part in (len(field).to_bytes(8, "big"), field))
