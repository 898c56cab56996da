"""BRIGHT (Su et al. 2024) in its published form: questions whose relevant documents are found by reasoning.

One domain is one benchmark: `examples/DOMAIN-*.parquet` has its questions, `documents/DOMAIN-*.parquet` the passages
and `long_documents/DOMAIN-*.parquet` the whole pages. `gpt4_reason` and others have the same rows, but for a query that
a model wrote by reasoning about the question. Documents that a question excludes are left out of its rankings
before a metric is computed, as in BRIGHT's own evaluation.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from ..errors import DataError
from .benchmark import Benchmark, splits_of
from .rows import FETCH, id_of, parquet_shards, read_rows, string_of, strings_of
from .types import Document, Question

LICENCE = (
    "BRIGHT, CC BY 4.0 as its card says. Cite: Su et al. BRIGHT: A Realistic and Challenging Benchmark for "
    "Reasoning-Intensive Retrieval. 2024, arXiv 2407.12883."
)
NONE = "N/A"
"""The value in `excluded_ids` of a question that excludes nothing."""
_TABLES = {"chunks": ("documents", "gold_ids"), "documents": ("long_documents", "gold_ids_long")}
"""Folder of the documents and column of the relevant ones, by task."""


def open_bright(
    path: str | Path, domain: str, task: Literal["chunks", "documents"] = "chunks", queries: str = "examples"
) -> Benchmark:
    """Read the questions of a domain, which are its test split, from the folder `queries`.

    Raises DataError for a missing or damaged file, a duplicate question, a row without id, text or lists of ids, and an
    excluded document that is relevant.
    """
    folder = Path(path).expanduser()
    table, gold = _TABLES[task]
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, int]] = {}
    for file in _files(folder, queries, domain):
        for number, row in read_rows(file, ("query", "id", "excluded_ids", gold), "questions of BRIGHT"):
            identifier = id_of(row, "id", file, number)
            if identifier in questions:
                raise DataError(f"{file}, row {number}: a second question has the id {identifier!r}. {FETCH}")
            excluded = tuple(name for name in strings_of(row, "excluded_ids", file, number) if name != NONE)
            relevant = strings_of(row, gold, file, number)
            if both := set(excluded).intersection(relevant):
                raise DataError(
                    f"{file}, row {number}: question {identifier!r} excludes {min(both)!r}, which is relevant to it. "
                    f"{FETCH}"
                )
            questions[identifier] = Question(identifier, string_of(row, "query", file, number), excluded=excluded)
            qrels[identifier] = dict.fromkeys(relevant, 1)
    notes: list[str] = []
    name = f"bright-{domain}" if task == "chunks" else f"bright-{domain}-long"
    name += "" if queries == "examples" else f"-{queries}"
    splits = splits_of(name, questions, {"test": qrels}, notes)
    files = _files(folder, table, domain)
    origin = {"kind": "bright", "domain": domain, "task": task, "queries": queries}
    return Benchmark(name, lambda: _documents(files), splits, origin, tuple(notes), LICENCE)


def _files(folder: Path, table: str, domain: str) -> list[Path]:
    """The files of a domain in one of the published folders: Parquet, or JSON lines."""
    lines = folder / table / f"{domain}.jsonl"
    files = parquet_shards(folder / table, domain) or [lines]
    if not files[0].is_file():
        domains = sorted({file.name.split("-0")[0].split(".")[0] for file in (folder / table).glob("*.*")})
        raise DataError(
            f"{folder / table} has no {domain}-00000-of-0000N.parquet and no {lines.name}; it has the domains "
            f"{', '.join(domains) or 'of no file'}. Correct dataset.subset or dataset.queries, or fetch the files."
        )
    return files


def _documents(files: Sequence[Path]) -> Iterator[Document]:
    for file in files:
        for number, row in read_rows(file, ("id", "content"), "documents of BRIGHT"):
            yield Document(id_of(row, "id", file, number), "", string_of(row, "content", file, number))
