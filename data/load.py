"""Loads the dataset or opens the benchmark that settings describe; hashes a corpus."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ..configs.schema import DatasetConfig
from ..errors import DataError
from .beir import load_beir
from .benchmark import Benchmark, load_benchmark
from .hpo import load_hpo
from .leakage import read_left_out, without, without_leaks
from .types import Dataset, Document, Split
from .wordnet import load_wordnet
from .wordnet_conversations import load_wordnet_conversations


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
    elif config.kind == "wordnet_conversations":
        dataset = load_wordnet_conversations(config.path)
    elif config.kind == "beir":
        assert config.path is not None, "DatasetConfig demands a path for kind 'beir'"
        dataset = load_beir(config.path)
    else:
        return load_benchmark(open_benchmark(config))
    return as_configured(dataset, config)


def open_benchmark(config: DatasetConfig) -> Benchmark:
    """The configured benchmark, with leaked questions removed (`without_leaks`).

    Raises DataError if it is missing, incomplete or inconsistent.
    """
    assert config.path is not None, "DatasetConfig demands a path for every published form"
    if config.kind == "ragbench":
        from .ragbench import open_ragbench

        benchmark = open_ragbench(config.path, config.parts)
    elif config.kind == "finagentbench":
        from .finagentbench import open_finagentbench

        benchmark = open_finagentbench(config.path, config.task)
    elif config.kind == "topiocqa":
        from .conversations import open_topiocqa

        benchmark = open_topiocqa(config.path)
    elif config.kind == "qrecc":
        from .conversations import open_qrecc

        benchmark = open_qrecc(config.path)
    elif config.kind == "bright":
        from .bright import open_bright

        assert config.subset is not None, "DatasetConfig demands a domain for kind 'bright'"
        benchmark = open_bright(config.path, config.subset, config.task, config.queries)
    else:
        from .hub_tables import open_tables

        benchmark = open_tables(config.path, config.subset)
    splits, left_out = _leave_out(benchmark.name, benchmark.splits, config)
    splits, notes = without_leaks(benchmark.name, splits)
    return replace(benchmark, splits=splits, notes=(*benchmark.notes, *left_out, *notes))


def as_configured(dataset: Dataset, config: DatasetConfig) -> Dataset:
    """The dataset without the questions that the settings leave out."""
    splits, notes = _leave_out(dataset.name, dataset.splits, config)
    return replace(dataset, splits=splits, notes=(*dataset.notes, *notes))


def _leave_out(name: str, splits: Mapping[str, Split], config: DatasetConfig) -> tuple[Mapping[str, Split], list[str]]:
    """The splits without the questions of `leave_out`. Raises DataError if none of them exists."""
    if config.leave_out is None:
        return splits, []
    path = Path(config.leave_out).expanduser()
    listed = read_left_out(path)
    remaining = without(splits, listed)
    counted, after = ({key: len(split.questions) for key, split in sides.items()} for sides in (splits, remaining))
    removed = {key: count - after.get(key, 0) for key, count in counted.items() if count > after.get(key, 0)}
    if listed and not removed:
        split, identifier = min(listed)
        raise DataError(
            f"{path} lists {len(listed)} questions, {identifier!r} of {split} among them, and {name} has none of them. "
            "It was written for another dataset: name its own file in dataset.leave_out, or remove the setting."
        )
    counts = ", ".join(f"{count} of {counted[key]} questions of {key}" for key, count in removed.items())
    return remaining, [f"{name}: {counts} are left out, as {path} says."] if removed else []


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
    name, title, text = (
        document.id.encode("utf-8", "surrogatepass"),
        document.title.encode("utf-8", "surrogatepass"),
        document.text.encode("utf-8", "surrogatepass"),
    )
    # Without a loop, which takes twice the time: this runs for each of millions of documents
    return b"".join(
        (len(name).to_bytes(8, "big"), name, len(title).to_bytes(8, "big"), title, len(text).to_bytes(8, "big"), text)
    )
