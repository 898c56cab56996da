"""Datasets by the settings that describe them: their folder, their questions, their corpus.

A packaged set is made from an installed package: written once, in BEIR form, to the user's cache. An index reads a
corpus in blocks and never as a whole. Blocks depend only on the content and the block size: any number of processes can
share them, and the ordered results are always the same. `Origin` identifies the corpus later without reading all of it.
"""

import hashlib
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from ..configs.environment import DatasetConfig
from ..errors import DataError
from ..storage import data_sha256, writing
from .beir import beir_folder, corpus_file, documents_of, load_beir, no_document, read_meta, save_beir
from .hpo import load_hpo
from .leakage import without_leaks
from .rows import ALL_LINES, Span, spans
from .types import Dataset, Document
from .wordnet import answers_of, load_wordnet, load_wordnet_conversations

PACKAGED: Mapping[str, Callable[[], Dataset]] = {
    "hpo": load_hpo,
    "wordnet": load_wordnet,
    "wordnet_conversations": load_wordnet_conversations,
}
_SAMPLES, _SAMPLE = 1024, 2**16


def dataset_folder(path: str | Path) -> Path:
    """The folder of a dataset; a packaged one is made first where the cache has none of this version's code.

    Raises DataError if there is no such folder, or the package of a packaged one is not installed; StorageError if the
    cache cannot be written.
    """
    make = PACKAGED.get(str(path))
    if make is None:
        return beir_folder(path)
    sources = [file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parent.glob("*.py"))]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "querylect" / "datasets"
    folder = cache / f"{path}-{data_sha256(sources)[:12]}"
    if not folder.is_dir():
        with writing(folder):
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / f"{path}.lock"):
                if not folder.is_dir():
                    dataset = make()
                    save_beir(dataset, folder, answers_of(dataset) if make is load_wordnet else None)
    return folder


def load_dataset(config: DatasetConfig, documents: Container[str] | None = None) -> Dataset:
    """Load the configured dataset; questions that a later split has are removed from the earlier ones, as published
    splits share some (SciFact: two test claims are in train). Notes say how many.

    With `documents`, the ids of its corpus, the corpus itself is not read. Raises DataError as `load_beir`.
    """
    dataset = load_beir(dataset_folder(config.path), documents=documents)
    splits, leaks = without_leaks(dataset.name, dataset.splits)
    return replace(dataset, splits=splits, notes=(*dataset.notes, *leaks))


@dataclass(frozen=True, slots=True)
class Origin:
    """Identifies a corpus file."""

    size: int
    """In bytes."""
    modified: int
    """Modification time in nanoseconds."""
    fingerprint: str
    """sha256 of the size and of 1024 samples of 64 KiB, which are all of a file up to 64 MiB."""


class Corpus:
    """The corpus of a dataset."""

    def __init__(self, config: DatasetConfig) -> None:
        """Raises DataError if there is no such folder."""
        self._folder = dataset_folder(config.path)
        self._file = corpus_file(self._folder)
        meta = read_meta(self._folder)
        self.name, self.licence = meta.name, meta.licence

    def blocks(self, size: int) -> tuple[list[Span], int]:
        """Blocks of about `size` bytes, and an upper bound of their documents."""
        blocks, lines = spans(self._file, size)
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
            return Origin(stat.st_size, stat.st_mtime_ns, file_fingerprint(self._file))
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


def file_fingerprint(path: Path) -> str:
    """sha256 of a file's size and of 1024 samples of 64 KiB, which are all of a file up to 64 MiB. Raises OSError."""
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "big"))
    with path.open("rb") as file:
        for start in range(0, size, max(_SAMPLE, size // _SAMPLES)):
            file.seek(start)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


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
