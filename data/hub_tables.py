"""Retrieval datasets in the form of the Hugging Face Hub: tables of documents, questions and judgements.

MTEB and BEIR publish this form. The `configs` in the YAML header of README.md locate the tables; without them they are
found by name: `corpus`, `queries` and `qrels`, as folders or as files. There is one table of judgements per split.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml.error import YAMLError

from ..configs.yaml12 import card_metadata
from ..errors import DataError
from .benchmark import Benchmark, relevance_level_of, splits_of
from .fetched import source_of
from .rows import FETCH, grade_of, id_of, read_rows, string_of, title_of
from .trec import JUDGEMENT_COLUMNS, read_judgements
from .types import Document, Question

_SPLITS = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}
_KINDS = ("*.parquet", "*.jsonl", "*.jsonl.gz", "*.tsv")
_STEM = re.compile(r"(train|dev|validation|test)(?:-\d{5}-of-\d{5})?\.(?:parquet|jsonl|jsonl\.gz|tsv)")


class _Tables(NamedTuple):
    corpus: list[Path]
    questions: list[Path]
    qrels: dict[str, list[Path]]
    """By split."""


def open_tables(path: str | Path, subset: str | None = None) -> Benchmark:
    """Read the questions and judgements of such a folder; documents are read on demand.

    `subset` chooses among several in a dataset, such as languages. Name, licence and `ignore_identical_ids` come from
    `source.json` if there is one. Raises DataError for a missing table or subset, a broken row, an invalid grade, and
    as `splits_of`.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; expected one with corpus, queries and qrels. {FETCH}")
    tables = _tables(folder, subset)
    questions = _questions(tables.questions)
    qrels = {split: _qrels(files) for split, files in tables.qrels.items()}
    source = source_of(folder)
    name = source.name or (f"{folder.resolve().name}/{subset}" if subset else folder.resolve().name)
    notes: list[str] = []
    return Benchmark(
        name=name,
        documents=lambda: _documents(tables.corpus),
        splits=splits_of(name, questions, qrels, notes),
        about={"kind": "mteb", "subset": subset, **source.about},
        notes=tuple(notes),
        licence=source.licence,
        ignore_identical_ids=source.ignore_identical_ids,
        relevance_level=relevance_level_of(name),
    )


def _tables(folder: Path, subset: str | None) -> _Tables:
    configs = _configs(folder)
    subsets = ", ".join(sorted(name.removesuffix("-corpus") for name in configs if name.endswith("-corpus")))
    prefix = f"{subset}-" if subset else ""
    qrels_name = next((name for name in (f"{prefix}qrels", "" if subset else "default") if name in configs), None)
    if f"{prefix}corpus" in configs and qrels_name:
        questions = configs.get(f"{prefix}queries") or configs.get("query") or {}
        qrels = {_SPLITS[split]: paths for split, paths in configs[qrels_name].items() if split in _SPLITS}
        tables = _Tables(_all_paths(configs[f"{prefix}corpus"]), _all_paths(questions), qrels)
    elif subset:
        raise DataError(f"{folder} has no subset {subset!r}; it has {subsets or 'none'}.")
    else:
        tables = _Tables(_find_files(folder, "corpus"), _find_files(folder, "queries"), _qrel_files(folder))
    missing = [name for name, table in zip(("corpus", "queries", "qrels"), tables, strict=True) if not table]
    if missing:
        hint = f" It holds the subsets {subsets}: choose one with dataset.subset." if subsets else ""
        raise DataError(
            f"{folder} has no table of {', '.join(missing)}; expected corpus, queries and qrels (train, validation or "
            f"test), as folders or files.{hint or ' ' + FETCH}"
        )
    return tables


def _configs(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Table → split → files, from the YAML header of README.md; empty if it has no `configs`."""
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    try:
        metadata = card_metadata(text)
    except YAMLError as error:
        raise DataError(f"the head of {readme} is not valid YAML ({error}). Correct or remove the file.") from error
    configs: dict[str, dict[str, list[Path]]] = {}
    tables = metadata.get("configs")
    for table in tables if isinstance(tables, list) else ():
        for split, patterns in _data_files(table):
            safe = [pattern for pattern in patterns if not Path(pattern).is_absolute() and ".." not in pattern]
            paths = sorted({path for pattern in safe for path in folder.glob(pattern)})
            if not paths:
                raise DataError(
                    f"{readme} says that {table['config_name']}/{split} lies in {', '.join(patterns)}, and nothing "
                    f"does. {FETCH}"
                )
            configs.setdefault(str(table["config_name"]), {})[split] = paths
    return configs


def _data_files(table: object) -> Iterator[tuple[str, list[str]]]:
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


def _find_files(folder: Path, name: str) -> list[Path]:
    for kind in _KINDS[:3]:
        paths = sorted((folder / name).glob(kind)) or sorted(folder.glob(name + kind[1:]))
        if paths:
            return paths
    return []


def _qrel_files(folder: Path) -> dict[str, list[Path]]:
    by_split: dict[str, list[Path]] = {}
    for directory in (folder / "qrels", folder / "data"):
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if match := _STEM.fullmatch(path.name):
                by_split.setdefault(_SPLITS[match[1]], []).append(path)
        if by_split:
            break
    return by_split


def _documents(files: list[Path]) -> Iterator[Document]:
    for path in files:
        for number, row in read_rows(path, ("text",), "a table of documents with _id, title and text"):
            title = title_of(row, path, number)
            yield Document(_id(row, path, number), title, string_of(row, "text", path, number))


def _questions(files: list[Path]) -> dict[str, Question]:
    questions: dict[str, Question] = {}
    for path in files:
        for number, row in read_rows(path, ("text",), "a table of questions with _id and text"):
            identifier = _id(row, path, number)
            text = string_of(row, "text", path, number)
            if not text.strip():
                raise DataError(f"{path}, row {number}: question {identifier!r} has no text. Fill it in or remove it.")
            if questions.setdefault(identifier, Question(identifier, text)).text != text:
                raise DataError(f"{path}, row {number}: a second question has the id {identifier!r}. Rename one.")
    return questions


def _qrels(files: list[Path]) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for path in files:
        for number, row in _judgements(path):
            question, document = id_of(row, "query-id", path, number), id_of(row, "corpus-id", path, number)
            grade = grade_of(row["score"], path, number)
            if qrels.setdefault(question, {}).setdefault(document, grade) != grade:
                raise DataError(
                    f"{path}, row {number}: question {question!r} and document {document!r} are judged {grade} here "
                    f"and {qrels[question][document]} before. Keep one of the two rows."
                )
    return qrels


def _judgements(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    if path.suffix == ".tsv" and path.is_file():
        rows = read_judgements(path)
        return ((number, dict(zip(JUDGEMENT_COLUMNS, map(str.strip, row), strict=True))) for number, row in rows)
    return read_rows(path, JUDGEMENT_COLUMNS, "judgements with query-id, corpus-id and score")


def _id(row: Mapping[str, object], path: Path, number: int) -> str:
    column = "_id" if "_id" in row else "id"
    if column not in row:
        raise DataError(f"{path}, row {number} has no column _id or id; it has {', '.join(row)}. {FETCH}")
    return id_of(row, column, path, number)
