"""Retrieval datasets in the form of the Hugging Face Hub: tables of documents, questions and judgements.

MTEB and BEIR publish this form. The `configs` in the YAML header of README.md locate the tables; without them they are
found by name: `corpus`, `queries` and `qrels`, as folders or as files. There is one table of judgements per split.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, StringConstraints
from yaml import YAMLError

from ..errors import DataError
from .judgements import read_judgements
from .rows import Id, Row, Text, read_rows
from .types import Benchmark, Document, Question

_SPLITS = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}
_STEM = re.compile(r"(train|dev|validation|test)(?:-\d{5}-of-\d{5})?\.(?:parquet|jsonl|jsonl\.gz|tsv)")
_Listed = BeforeValidator(lambda value: value if isinstance(value, list) else [value])


class _DataFiles(BaseModel):
    split: str = "train"
    path: Annotated[list[str], _Listed]


class _Config(BaseModel):
    config_name: str
    data_files: Annotated[list[_DataFiles | str], _Listed] = []


class _Card(BaseModel):
    """The YAML header of README.md."""

    configs: list[_Config] = []
    license: Annotated[list[Any], _Listed] = []


class _TableQuestion(Row):
    id: Id = Field(validation_alias=AliasChoices("_id", "id"))
    text: Annotated[str, StringConstraints(pattern=r"\S")]


class _TableDocument(Row):
    id: Id = Field(validation_alias=AliasChoices("_id", "id"))
    title: Text = ""
    text: str


def open_tables(folder: Path, name: str, subset: str | None, qrels: Path) -> Benchmark:
    """Read the questions and judgements of such a folder; documents are read on demand.

    `subset` chooses among several in a dataset, such as languages; `qrels` is the folder of the judgements. Raises
    DataError for a missing table or subset, and for a repeated question or judgement.
    """
    card, prefix = _card(folder), f"{subset}-" if subset else ""
    configs = {config.config_name: _files_by_split(folder, config) for config in card.configs}
    judged = configs.get(f"{prefix}qrels") or (configs.get("default") if not subset else None)
    if configs.get(f"{prefix}corpus") and judged:
        corpus = _all_files(configs[f"{prefix}corpus"])
        queries = _all_files(configs.get(f"{prefix}queries") or configs.get("query") or {})
    else:
        corpus, queries = _by_name(folder, f"{prefix}corpus"), _by_name(folder, f"{prefix}queries")
        judged = {}
        for path in sorted(qrels.glob("*")):
            if match := _STEM.fullmatch(path.name):
                judged.setdefault(match[1], []).append(path)
    tables = {"corpus": corpus, "queries": queries, "qrels": judged}
    if missing := [name for name, table in tables.items() if not table]:
        subsets = ", ".join(sorted(name.removesuffix("-corpus") for name in configs if name.endswith("-corpus")))
        raise DataError(
            f"{folder} has no table of {', '.join(missing)}; expected corpus, queries and qrels (train, validation or "
            f"test). Its subsets, for --subset, are: {subsets or 'none'}."
        )
    questions: dict[str, Question] = {}
    for path in queries:
        for location, row in read_rows(path, _TableQuestion):
            if questions.setdefault(row.id, Question(row.id, row.text)).text != row.text:
                raise DataError(f"{location}: a second question has the id {row.id!r}.")

    def documents() -> Iterator[Document]:
        for path in corpus:
            yield from (Document(row.id, row.title, row.text) for _, row in read_rows(path, _TableDocument))

    judgements = {_SPLITS[split]: read_judgements(*files) for split, files in judged.items() if split in _SPLITS}
    licence = ", ".join(map(str, filter(None, card.license)))
    return Benchmark(f"{name}/{subset}" if subset else name, documents, questions, judgements, licence=licence)


def _card(folder: Path) -> _Card:
    """That of the folder; empty without a valid one."""
    from huggingface_hub import metadata_load

    readme = folder / "README.md"
    try:
        return _Card.model_validate((metadata_load(readme) if readme.is_file() else None) or {})
    except (YAMLError, ValueError):
        return _Card()


def _files_by_split(folder: Path, config: _Config) -> dict[str, list[Path]]:
    by_split: dict[str, list[Path]] = {}
    for entry in config.data_files:
        files = _DataFiles(path=[entry]) if isinstance(entry, str) else entry
        safe = [pattern for pattern in files.path if not Path(pattern).is_absolute() and ".." not in pattern]
        if paths := sorted({path for pattern in safe for path in folder.glob(pattern)}):
            by_split[files.split] = paths
    return by_split


def _all_files(splits: Mapping[str, list[Path]]) -> list[Path]:
    return [path for paths in splits.values() for path in paths]


def _by_name(folder: Path, name: str) -> list[Path]:
    kinds = (".parquet", ".jsonl", ".jsonl.gz")
    matches = (sorted((folder / name).glob(f"*{kind}")) or sorted(folder.glob(f"{name}*{kind}")) for kind in kinds)
    return next(filter(None, matches), [])
