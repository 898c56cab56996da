"""The corpus of a BEIR folder, which an index is built from: read in blocks and never as a whole.

Blocks depend only on the content and the block size: any number of processes can share them, and the ordered results
are always the same. `Origin` identifies the corpus later without reading all of it.
"""

import hashlib
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..configs.schema import DatasetConfig
from ..errors import DataError
from .beir import corpus_file, documents_of, name_and_licence, no_document
from .jsonl import ALL_LINES, Span, spans
from .load import load_dataset
from .packaged import dataset_folder
from .types import AllDocuments, Dataset, Document

_SAMPLES, _SAMPLE = 1024, 2**16
_FULL_HASH_BYTES = _SAMPLES * _SAMPLE


@dataclass(frozen=True, slots=True)
class Origin:
    """Identifies a corpus file."""

    size: int
    """In bytes."""
    modified: int
    """Modification time in nanoseconds."""
    fingerprint: str
    """sha256 of the file, or of 1024 samples if it exceeds 64 MiB."""


class Corpus:
    """The corpus of a dataset."""

    def __init__(self, config: DatasetConfig) -> None:
        """Raises DataError if there is no such folder."""
        self._config = config
        self._folder = dataset_folder(config.path)
        self._file = corpus_file(self._folder)
        self.name, self.licence = name_and_licence(self._folder)

    def blocks(self, size: int) -> tuple[list[Span], int]:
        """Blocks of about `size` bytes, and an upper bound of their documents."""
        blocks, lines = spans(self._file, size, "the corpus, one document per line")
        if not lines:
            raise no_document(self._file)
        return blocks, lines

    def read(self, block: Span = ALL_LINES) -> Iterator[Document]:
        """The documents of a block, one at a time."""
        return documents_of(self._folder, block)

    def origin(self) -> Origin:
        """Reads at most 64 MiB of the file. Raises DataError if it is missing."""
        try:
            stat = self._file.stat()
            return Origin(stat.st_size, stat.st_mtime_ns, _fingerprint(self._file, stat.st_size))
        except OSError as error:
            raise DataError(f"{self._file} cannot be read ({error}). Check dataset.path.") from error

    def differs(self, origin: Origin) -> str | None:
        """How this corpus differs from the one of that origin; None if it does not.

        Equal size and modification time are sufficient. A missing corpus file counts as no difference: an index
        contains its documents.
        """
        try:
            stat = self._file.stat()
        except FileNotFoundError:
            return None
        if stat.st_size != origin.size:
            return f"{self._file.name} has {stat.st_size} bytes, not {origin.size}"
        if stat.st_mtime_ns == origin.modified or self.origin().fingerprint == origin.fingerprint:
            return None
        return f"{self._file.name} has other content"

    def questions(self, documents: Container[str]) -> Dataset:
        """The dataset without its corpus, whose ids are `documents`."""
        return load_dataset(self._config, documents)


@dataclass(frozen=True, slots=True)
class LoadedQuestions:
    """The dataset of `Corpus.questions`, and how it was read."""

    config: DatasetConfig
    dataset: Dataset
    complete: bool
    """Whether judgements of documents that no index has may be among its own."""

    def current(self, config: DatasetConfig) -> Dataset | None:
        """The dataset, if it was read with this config for the documents of an index; else None."""
        return self.dataset if config == self.config and not self.complete else None


def load_questions(config: DatasetConfig, documents: Container[str]) -> LoadedQuestions:
    """The configured dataset by `Corpus.questions`."""
    return LoadedQuestions(config, load_dataset(config, documents), isinstance(documents, AllDocuments))


def _fingerprint(path: Path, size: int) -> str:
    digest = hashlib.sha256(size.to_bytes(8, "big"))
    with path.open("rb") as file:
        if size <= _FULL_HASH_BYTES:
            while part := file.read(2**20):
                digest.update(part)
        else:
            for number in range(_SAMPLES):
                file.seek(number * (size - _SAMPLE) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()
