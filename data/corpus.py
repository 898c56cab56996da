"""The corpus that an index is built from, read in blocks and never as a whole.

Blocks depend only on the content and the block size: any number of processes can share them, and the ordered results
are always the same. `Origin` identifies the corpus later without reading all of it.
"""

import hashlib
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..configs.schema import DatasetConfig
from ..errors import DataError
from .beir import beir_folder, corpus_file, load_beir, name_and_licence, no_document, read_corpus
from .jsonl import Span, spans
from .load import as_configured, corpus_hash, held_out, read_dataset
from .types import AllDocuments, Dataset, Document

_FULL_HASH_BYTES = 64 * 2**20
_SAMPLES, _SAMPLE = 1024, 2**16
_LOADED_BLOCK = 4096
"""Documents in a block of a corpus in memory."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Identifies a corpus."""

    size: int
    """Bytes of the corpus file; number of documents if there is no file."""
    modified: int
    """Modification time of the file in nanoseconds; 0 if there is no file."""
    fingerprint: str
    """sha256 of the file, or of 1024 samples if it exceeds 64 MiB; the corpus hash if there is no file."""


class BeirCorpus:
    """The `corpus.jsonl` of a BEIR folder, plain or gzipped."""

    def __init__(self, config: DatasetConfig) -> None:
        """Raises DataError if there is no such folder."""
        assert config.path is not None, "DatasetConfig demands a path for kind 'beir'"
        self._config = config
        self._folder = beir_folder(config.path)
        self._file = corpus_file(self._folder)
        self.name, self.licence = name_and_licence(self._folder)

    def blocks(self, size: int) -> tuple[list[Span], int]:
        """Blocks of about `size` bytes, and an upper bound of their documents."""
        blocks, lines = spans(self._file, size, "the corpus, one document per line")
        if not lines:
            raise no_document(self._file)
        return blocks, lines

    def read(self, block: Span) -> Iterator[Document]:
        """The documents of a block, one at a time."""
        return (document for _, document in read_corpus(self._file, block))

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
        return held_out(as_configured(load_beir(self._folder, documents=documents), self._config))


class LoadedCorpus:
    """The corpus of a small dataset in memory."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.name, self.licence = dataset.name, dataset.licence

    def blocks(self, size: int) -> tuple[list[Span], int]:
        """Blocks of 4096 documents (`size` is ignored), and their number of documents."""
        total = len(self._dataset.corpus)
        starts = range(0, total, _LOADED_BLOCK)
        return [Span(start, min(start + _LOADED_BLOCK, total)) for start in starts], total

    def read(self, block: Span) -> Iterator[Document]:
        """The documents of a block."""
        return iter(self._dataset.corpus[block.start : block.end])

    def origin(self) -> Origin:
        """Size and hash of the corpus."""
        return Origin(len(self._dataset.corpus), 0, corpus_hash(self._dataset.corpus))

    def differs(self, origin: Origin) -> str | None:
        """How this corpus differs from the one of that origin; None if it does not."""
        current = self.origin()
        return None if current == origin else f"{current.size} documents, hash {current.fingerprint[:12]}"

    def questions(self, documents: Container[str]) -> Dataset:
        """The dataset, its corpus included."""
        return held_out(self._dataset)


Corpus = BeirCorpus | LoadedCorpus


def open_corpus(config: DatasetConfig) -> Corpus:
    """The corpus of the configured dataset. Raises DataError if it is missing or cannot be built."""
    return BeirCorpus(config) if config.kind == "beir" else LoadedCorpus(read_dataset(config))


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
    """The configured dataset by `Corpus.questions`. Raises DataError as that and `open_corpus`."""
    dataset = open_corpus(config).questions(documents)
    return LoadedQuestions(config, dataset, isinstance(documents, AllDocuments))


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
