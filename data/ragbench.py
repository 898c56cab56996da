"""RAGBench (Friel et al. 2024): twelve parts of questions; each row has the documents that were given to answer it.

The corpus is the documents of all rows of all parts, each text once. Relevant to a question are all documents of its
row, as in Yuan et al. Rows of one part with the same question (many are answered by two models) are joined, with the
documents of all of them. Question ids are PART/ID, for results per part. The dataset is named `ragbench` only if all
parts are read, so that published scores are not compared with those on a smaller corpus.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from .benchmark import Benchmark
from .judgements import splits_of
from .rows import document_id, parquet_shards, read_rows
from .types import SPLITS, Document, Question

PARTS = (
    "covidqa", "cuad", "delucionqa", "emanual", "expertqa", "finqa", "hagrid", "hotpotqa", "msmarco", "pubmedqa",
    "tatqa", "techqa",
)  # fmt: skip


def part_of(question_id: str) -> str:
    """The RAGBench part of a question id."""
    return question_id.partition("/")[0]


def open_ragbench(folder: Path, parts: Sequence[str] | None = None) -> Benchmark:
    """Read the questions of a folder PART/{train,validation,test}-*.parquet; `parts` None requires all twelve.

    A part must have test rows; missing train or validation rows are noted. Raises DataError for a missing part.
    """
    files = {part: {split: parquet_shards(folder / part, split) for split in SPLITS} for part in parts or PARTS}
    if lacking := [part for part, by_split in files.items() if not by_split["test"]]:
        raise DataError(
            f"{folder} lacks the test rows of the RAGBench parts {', '.join(lacking)}. Fetch them, or say which to use "
            f"with --subset, of {', '.join(PARTS)}."
        )
    notes = [f"ragbench/{part}: no {split} rows." for part in files for split in SPLITS if not files[part][split]]
    questions: dict[str, Question] = {}
    ids: dict[tuple[str, str], str] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {split: {} for split in SPLITS}
    rows = repeated = 0
    for part, split, row in _rows(files):
        text = row["question"]
        if (part, text) not in ids:
            identifier = "_".join(f"{part}/{row['id']}".split())
            if identifier in questions:  # the id of another question
                identifier = f"{identifier}-{document_id(text)[:8]}"
            ids[part, text] = identifier
            questions[identifier] = Question(identifier, text)
        identifier = ids[part, text]
        rows, repeated = rows + 1, repeated + (identifier in qrels[split])
        judged = qrels[split].setdefault(identifier, {})
        judged.update({document_id(text): 1 for text in row["documents"] if text.strip()})
    if repeated:
        notes.append(f"ragbench: {repeated} of {rows} rows repeat a question of their part and split and are joined.")
    name = "ragbench" if len(files) == len(PARTS) else f"ragbench[{','.join(files)}]"
    return Benchmark(name, lambda: _documents(files), splits_of(name, questions, qrels, notes), notes=notes)


_Files = dict[str, dict[str, list[Path]]]
"""Part → split → files."""


def _rows(files: _Files) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Part, split and row, in the order of parts, splits and rows."""
    for part, by_split in files.items():
        for split, paths in by_split.items():
            for path in paths:
                for _, row in read_rows(path, ("id", "question", "documents")):
                    yield part, split, row


def _documents(files: _Files) -> Iterator[Document]:
    ids: set[str] = set()
    for _, _, row in _rows(files):
        for text in row["documents"]:
            identifier = document_id(text)
            if identifier not in ids and text.strip():
                ids.add(identifier)
                yield Document(identifier, "", text)
