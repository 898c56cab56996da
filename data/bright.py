"""BRIGHT (Su et al. 2024): questions whose relevant documents are found by reasoning.

One domain is one benchmark: `examples/DOMAIN-*.parquet` has its questions, `documents/DOMAIN-*.parquet` the passages
and `long_documents/DOMAIN-*.parquet` the whole pages. `gpt4_reason` and others have the same rows, but for a query that
a model wrote by reasoning about the question. Documents that a question excludes are left out of its rankings.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import DataError
from .benchmark import Benchmark
from .jsonl import identifier_of, strings_of, text_of
from .judgements import splits_of
from .rows import parquet_shards, read_rows
from .types import Document, Question

NONE = "N/A"
"""The value in `excluded_ids` of a question that excludes nothing."""


def open_bright(folder: Path, domain: str, queries: str = "examples") -> Benchmark:
    """Read the questions of a domain from the folder `queries`; they are its test split. `biology-long` searches the
    whole pages of `biology`.

    Raises DataError for a missing file and for an excluded document that is relevant.
    """
    long, name = domain.endswith("-long"), f"bright-{domain}" + ("" if queries == "examples" else f"-{queries}")
    table, gold = ("long_documents", "gold_ids_long") if long else ("documents", "gold_ids")
    domain = domain.removesuffix("-long")
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, int]] = {}
    for file in _files(folder, queries, domain):
        for number, row in read_rows(file, ("query", "id", "excluded_ids", gold)):
            identifier, text = identifier_of(row, file, number, "id"), text_of(row, "query", file, number, None)
            excluded = tuple(name for name in strings_of(row, "excluded_ids", file, number) if name != NONE)
            relevant = strings_of(row, gold, file, number)
            if identifier in questions or set(excluded).intersection(relevant):
                raise DataError(
                    f"{file}, row {number}: question {identifier!r} is repeated or excludes what is relevant."
                )
            questions[identifier] = Question(identifier, text, excluded=excluded)
            qrels[identifier] = dict.fromkeys(relevant, 1)
    notes: list[str] = []
    files = _files(folder, table, domain)
    return Benchmark(name, lambda: _documents(files), splits_of(name, questions, {"test": qrels}, notes), notes=notes)


def _files(folder: Path, table: str, domain: str) -> list[Path]:
    """The files of a domain in one of the published folders: Parquet, or JSON lines."""
    files = parquet_shards(folder / table, domain) or [folder / table / f"{domain}.jsonl"]
    if not files[0].is_file():
        domains = sorted({file.name.split("-0")[0].split(".")[0] for file in (folder / table).glob("*.*")})
        raise DataError(
            f"{folder / table} has no domain {domain!r}; it has {', '.join(domains) or 'no file'}. Choose one with "
            "--subset, and the folder of the questions with --queries."
        )
    return files


def _documents(files: Sequence[Path]) -> Iterator[Document]:
    for file in files:
        for number, row in read_rows(file, ("id", "content")):
            yield Document(identifier_of(row, file, number, "id"), "", text_of(row, "content", file, number, None))
