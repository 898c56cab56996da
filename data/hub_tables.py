"""Retrieval datasets in the form of the Hugging Face Hub: tables of documents, questions and judgements.

MTEB and BEIR publish this form. The tables are called `corpus`, `queries` and `qrels`, as folders or as files; there is
one table of judgements per split. In a dataset of several, such as languages, `SUBSET-` stands before each name.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field, StringConstraints
from yaml import YAMLError

from ..errors import DataError
from .judgements import read_judgements
from .rows import Id, Row, Text, read_rows
from .types import Benchmark, Document, Question

_SPLITS = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}
_STEM = re.compile(r"(train|dev|validation|test)(?:-\d{5}-of-\d{5})?\.(?:parquet|jsonl|jsonl\.gz|tsv)")


class _TableQuestion(Row):
    id: Id = Field(validation_alias=AliasChoices("_id", "id"))
    text: Annotated[str, StringConstraints(pattern=r"\S")]


class _TableDocument(Row):
    id: Id = Field(validation_alias=AliasChoices("_id", "id"))
    title: Text = ""
    text: str


def open_tables(folder: Path, name: str, subset: str | None, qrels: Path | None) -> Benchmark:
    """Read the questions and judgements of such a folder; documents are read on demand.

    `qrels` is the folder of the judgements where it is not in `folder`. Raises DataError for a missing table, and for a
    repeated question or judgement.
    """
    prefix = f"{subset}-" if subset else ""
    corpus, queries = _files(folder, f"{prefix}corpus"), _files(folder, f"{prefix}queries")
    judged: dict[str, list[Path]] = {}
    names = [f"{prefix}{table}" for table in ("qrels", "default", "data")]
    qrels = qrels or next((folder / table for table in names if (folder / table).is_dir()), folder / names[0])
    for path in sorted(qrels.glob("*")):
        if match := _STEM.fullmatch(path.name):
            judged.setdefault(_SPLITS[match[1]], []).append(path)
    tables = {"corpus": corpus, "queries": queries, "qrels": judged}
    if missing := [name for name, table in tables.items() if not table]:
        subsets = ", ".join(sorted({path.name.partition("-corpus")[0] for path in folder.glob("*-corpus*")}))
        raise DataError(
            f"{folder} has no table of {', '.join(missing)}; looked for folders or files named {prefix}corpus and "
            f"{prefix}queries (.parquet, .jsonl), and for {{train,dev,validation,test}} (.parquet, .jsonl, .tsv) in "
            f"{qrels}. Subsets, for --subset: {subsets or 'none'}. Rename other tables in a copy, for --from."
        )
    questions: dict[str, Question] = {}
    for path in queries:
        for location, row in read_rows(path, _TableQuestion):
            if questions.setdefault(row.id, Question(row.id, row.text)).text != row.text:
                raise DataError(f"{location}: a second question has the id {row.id!r}.")

    def documents() -> Iterator[Document]:
        for path in corpus:
            yield from (Document(row.id, row.title, row.text) for _, row in read_rows(path, _TableDocument))

    judgements = {split: read_judgements(*files) for split, files in judged.items()}
    title = f"{name}/{subset}" if subset else name
    return Benchmark(title, documents, questions, judgements, licence=_licence(folder))


def _licence(folder: Path) -> str:
    """What the card of the folder states; "" without a valid one."""
    from huggingface_hub import metadata_load

    readme = folder / "README.md"
    try:
        stated = (metadata_load(readme) or {}).get("license") if readme.is_file() else None
    except (YAMLError, ValueError):
        stated = None
    return ", ".join(str(name) for name in (stated if isinstance(stated, list) else [stated]) if name)


def _files(folder: Path, name: str) -> list[Path]:
    kinds = (".parquet", ".jsonl", ".jsonl.gz")
    matches = (sorted((folder / name).glob(f"*{kind}")) or sorted(folder.glob(f"{name}*{kind}")) for kind in kinds)
    return next(filter(None, matches), [])
