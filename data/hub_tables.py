"""Retrieval datasets in the form of the Hugging Face Hub: tables of documents, questions and judgements.

MTEB and BEIR publish this form. The `configs` in the YAML header of README.md locate the tables; without them they are
found by name: `corpus`, `queries` and `qrels`, as folders or as files. There is one table of judgements per split.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from yaml import YAMLError

from ..errors import DataError
from .benchmark import Benchmark
from .jsonl import grade_of, identifier_of, text_of
from .judgements import COLUMNS, add_judgement, read_judgements, splits_of
from .rows import read_rows
from .types import Document, Question

_SPLITS = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}
_STEM = re.compile(r"(train|dev|validation|test)(?:-\d{5}-of-\d{5})?\.(?:parquet|jsonl|jsonl\.gz|tsv)")
_TEXTS, _OPTIONAL = ("text",), ("_id", "id", "title")


class _Tables(NamedTuple):
    corpus: list[Path]
    queries: list[Path]
    qrels: dict[str, list[Path]]
    """By split."""


def open_tables(folder: Path, name: str, subset: str | None = None, qrels: Path | None = None) -> Benchmark:
    """Read the questions and judgements of such a folder; documents are read on demand.

    `subset` chooses among several in a dataset, such as languages; `qrels` is the folder of the judgements, where they
    have their own. Raises DataError for a missing table or subset, and for a repeated question or judgement.
    """
    tables = _tables(folder, subset, qrels or folder / "qrels")
    questions: dict[str, Question] = {}
    for path in tables.queries:
        for number, row in read_rows(path, _TEXTS, _OPTIONAL):
            question = Question(_id(row, path, number), text_of(row, "text", path, number, None))
            if not question.text.strip() or questions.setdefault(question.id, question) != question:
                raise DataError(f"{path}, row {number}: question {question.id!r} has no text or another one before.")
    judgements = {split: _judgements(files) for split, files in tables.qrels.items()}
    notes: list[str] = []
    title = f"{name}/{subset}" if subset else name
    splits = splits_of(title, questions, judgements, notes)
    return Benchmark(title, lambda: _documents(tables.corpus), splits, _licence(folder), notes)


def _tables(folder: Path, subset: str | None, qrels: Path) -> _Tables:
    configs = _configs(folder)
    prefix = f"{subset}-" if subset else ""
    judged = configs.get(f"{prefix}qrels") or (configs.get("default") if not subset else None)
    if f"{prefix}corpus" in configs and judged:
        questions = configs.get(f"{prefix}queries") or configs.get("query") or {}
        by_split = {_SPLITS[split]: paths for split, paths in judged.items() if split in _SPLITS}
        tables = _Tables(_all_paths(configs[f"{prefix}corpus"]), _all_paths(questions), by_split)
    else:
        tables = _Tables(_by_name(folder, f"{prefix}corpus"), _by_name(folder, f"{prefix}queries"), _qrel_files(qrels))
    if missing := [name for name, table in tables._asdict().items() if not table]:
        subsets = ", ".join(sorted(name.removesuffix("-corpus") for name in configs if name.endswith("-corpus")))
        raise DataError(
            f"{folder} has no table of {', '.join(missing)}; expected corpus, queries and qrels (train, validation or "
            f"test). Its subsets, for --subset, are: {subsets or 'none'}."
        )
    return tables


def _configs(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Table → split → files, from the YAML header of README.md; empty if it has no `configs`."""
    configs: dict[str, dict[str, list[Path]]] = {}
    tables = _card(folder).get("configs")
    for table in tables if isinstance(tables, list) else ():
        for split, patterns in _data_files(table):
            safe = [pattern for pattern in patterns if not Path(pattern).is_absolute() and ".." not in pattern]
            paths = sorted({path for pattern in safe for path in folder.glob(pattern)})
            if paths:
                configs.setdefault(str(table["config_name"]), {})[split] = paths
    return configs


def _card(folder: Path) -> Mapping[str, Any]:
    """The YAML header of README.md; empty without a valid one."""
    from huggingface_hub import metadata_load

    readme = folder / "README.md"
    try:
        return (metadata_load(readme) if readme.is_file() else None) or {}
    except (YAMLError, ValueError):
        return {}


def _licence(folder: Path) -> str:
    stated = _card(folder).get("license")
    return ", ".join(str(name) for name in (stated if isinstance(stated, list) else [stated]) if name)


def _data_files(table: Any) -> Iterator[tuple[str, list[str]]]:
    """(split, patterns) of an entry of `configs`; the split defaults to `train`, as on the Hub."""
    files = table.get("data_files") if isinstance(table, dict) and "config_name" in table else None
    for entry in files if isinstance(files, list) else [files]:
        spec = entry if isinstance(entry, dict) else {"path": entry}
        path = spec.get("path")
        patterns = [pattern for pattern in (path if isinstance(path, list) else [path]) if isinstance(pattern, str)]
        if patterns:
            yield str(spec.get("split", "train")), patterns


def _all_paths(splits: Mapping[str, list[Path]]) -> list[Path]:
    return [path for paths in splits.values() for path in paths]


def _by_name(folder: Path, name: str) -> list[Path]:
    kinds = (".parquet", ".jsonl", ".jsonl.gz")
    matches = (sorted((folder / name).glob(f"*{kind}")) or sorted(folder.glob(f"{name}*{kind}")) for kind in kinds)
    return next(filter(None, matches), [])


def _qrel_files(folder: Path) -> dict[str, list[Path]]:
    by_split: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if match := _STEM.fullmatch(path.name):
            by_split.setdefault(_SPLITS[match[1]], []).append(path)
    return by_split


def _documents(files: list[Path]) -> Iterator[Document]:
    for path in files:
        for number, row in read_rows(path, _TEXTS, _OPTIONAL):
            title, text = text_of(row, "title", path, number, ""), text_of(row, "text", path, number, None)
            yield Document(_id(row, path, number), title, text)


def _judgements(files: list[Path]) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for path in files:
        if path.suffix == ".tsv":
            for question, grades in read_judgements(path).items():
                for document, grade in grades.items():
                    add_judgement(qrels, question, document, grade, str(path))
            continue
        for number, row in read_rows(path, COLUMNS):
            question, document = (identifier_of(row, path, number, column) for column in COLUMNS[:2])
            add_judgement(qrels, question, document, grade_of(row["score"], path, number), f"{path}, row {number}")
    return qrels


def _id(row: Mapping[str, object], path: Path, number: int) -> str:
    return identifier_of(row, path, number, "_id" if "_id" in row else "id")
