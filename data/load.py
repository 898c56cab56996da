"""Loads the dataset or opens the benchmark that settings describe; hashes a corpus."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from ..configs.schema import DatasetConfig
from .beir import load_beir
from .benchmark import Benchmark, load_benchmark
from .hpo import load_hpo
from .leakage import without_leaks
from .types import Dataset, Document
from .wordnet import load_wordnet


def load_dataset(config: DatasetConfig) -> Dataset:
    """Load the configured dataset; questions of a later split are removed from the earlier ones (`held_out`).

    Raises DataError if the source is missing, empty or inconsistent.
    """
    return held_out(read_dataset(config))


def read_dataset(config: DatasetConfig) -> Dataset:
    """`load_dataset`, without removing questions that occur in a later split."""
    if config.kind == "hpo":
        dataset = load_hpo(config.path)
    elif config.kind == "wordnet":
        dataset = load_wordnet(config.path)
    elif config.kind == "beir":
        assert config.path is not None, "DatasetConfig demands a path for kind 'beir'"
        dataset = load_beir(config.path)
    else:
        dataset = load_benchmark(open_benchmark(config))
    return as_configured(dataset, config)


def open_benchmark(config: DatasetConfig) -> Benchmark:
    """The configured benchmark, with leaked questions removed (`without_leaks`).

    Raises DataError if it is missing, incomplete or inconsistent.
    """
    assert config.path is not None, "DatasetConfig demands a path for every published form"
    if config.kind == "ragbench":
        from .ragbench import open_ragbench

        benchmark = open_ragbench(config.path, config.parts, config.positives)
    elif config.kind == "finagentbench":
        from .finagentbench import open_finagentbench

        benchmark = open_finagentbench(config.path, config.task)
    elif config.kind == "mteb":
        from .hub_tables import open_tables

        benchmark = open_tables(config.path, config.subset)
    else:
        from .ir_datasets import open_ir_datasets

        benchmark = open_ir_datasets(config.path)
    splits, notes = without_leaks(benchmark.name, benchmark.splits)
    return replace(benchmark, splits=splits, notes=(*benchmark.notes, *notes))


def as_configured(dataset: Dataset, config: DatasetConfig) -> Dataset:
    """The dataset with the properties that the settings override."""
    if config.ignore_identical_ids is not None:
        dataset = replace(dataset, ignore_identical_ids=config.ignore_identical_ids)
    if config.relevance_level is not None:
        dataset = replace(dataset, relevance_level=config.relevance_level)
    return dataset


def held_out(dataset: Dataset) -> Dataset:
    """The dataset without training questions that are in validation or test, and validation questions that are in test.

    Published splits share questions (SciFact: two test claims are in train). Notes say how many were removed.
    """
    splits, notes = without_leaks(dataset.name, dataset.splits)
    return replace(dataset, splits=splits, notes=(*dataset.notes, *notes))


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
