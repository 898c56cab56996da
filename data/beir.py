"""Datasets as BEIR folders: `corpus.jsonl`, `queries.jsonl`, `qrels/{train,dev,test}.tsv` (Thakur et al. 2021).

Every file may be gzipped. A line of queries.jsonl may have `options`, `history`, `reference_rewrite`, `excluded_ids`,
and right answers; without qrels/, its `split`. Questions may also be TREC's topics (topics.py), and judgements TREC's.
Name, licence, `ignore_identical_ids` and `relevance_level` come from an optional `meta.json`.
"""

import json
import os
import shutil
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, ConfigDict, Field, StringConstraints

from ..errors import DataError
from ..storage import atomic_folder, file_sha256, write_lines
from .history import History, records_of
from .judgements import COLUMNS, judged_splits, read_judgements
from .rows import ALL_LINES, Id, Row, Span, Text, Texts, checked, plain_or_gzipped, read_rows, write_rows
from .topics import NAMES, read_topics
from .types import SPLITS, Dataset, Document, Question, Split

_SPLITS = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}
"""The split of each name of a qrel file."""
_QREL_SUFFIXES = (".tsv", ".txt", ".qrels", ".trec")


class _DocumentRow(Row):
    id: Id = Field(alias="_id")
    title: Text = ""
    text: str
    metadata: Any = None

    @property
    def date(self) -> str:
        date = self.metadata.get("date") if isinstance(self.metadata, dict) else None
        return date if isinstance(date, str) else ""


class QuestionRow(Row):
    """A line of queries.jsonl; `model_extra` are further fields of it, such as right answers."""

    model_config = ConfigDict(extra="allow")
    id: Id = Field(alias="_id")
    text: Annotated[str, StringConstraints(pattern=r"\S")]
    options: Texts = ()
    history: History = ()
    reference_rewrite: Text = ""
    excluded_ids: Texts = ()


class Meta(Row):
    """The fields of meta.json that are read."""

    name: Text = ""
    licence: Text = Field("", validation_alias=AliasChoices("licence", "license"))
    ignore_identical_ids: bool = False
    relevance_level: int = 1
    sha256: dict[str, str] = Field(default_factory=dict)


def load_beir(
    path: str | Path, splits: Collection[str] | None = None, documents: Container[str] | None = None
) -> Dataset:
    """Read a BEIR folder. `splits` names those to read ("train", "validation", "test"); None reads all there are.

    A folder without questions is a corpus: it has no splits. Without `qrels/`, questions belong to the split that they
    name and have no judgements. With `documents`, the ids of a corpus stored elsewhere, `corpus.jsonl` is not read and
    `Dataset.corpus` is empty. Judgements whose document or question does not exist are dropped and noted.

    Raises DataError for a missing file or split, a broken line, a duplicate id, and as `judged_splits`.
    """
    folder = beir_folder(path)
    meta = read_meta(folder)
    corpus = tuple(documents_of(folder)) if documents is None else ()
    if documents is None:
        documents = {document.id for document in corpus}
        if len(documents) < len(corpus):
            raise DataError(f"{corpus_file(folder)}: documents share an id; ids must be unique. Rename one.")
        if not corpus:
            raise no_document(corpus_file(folder))
    files = {_SPLITS[stem]: file for stem in _SPLITS if (file := _qrel_file(folder, stem)) is not None}
    notes: list[str] = []
    if files or splits is not None:
        if missing := [split for split in splits or () if split not in files]:
            raise DataError(f"{folder} has no split {', '.join(missing)}; it has {', '.join(files) or 'none'}.")
        qrels = {split: read_judgements(file) for split, file in files.items() if splits is None or split in splits}
        questions = {question.id: question for question, _ in questions_of(folder)}
        loaded = judged_splits(meta.name, questions, qrels, documents, notes)
    else:
        loaded = _unjudged_splits(folder)
        notes.append(f"{meta.name}: its questions have no judgements." if loaded else f"{meta.name} is a corpus.")
    return Dataset(
        meta.name, corpus, loaded, tuple(notes), meta.licence, meta.ignore_identical_ids, meta.relevance_level
    )


def beir_folder(path: str | Path) -> Path:
    """The folder of that path. Raises DataError if there is none."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"{folder} does not exist or is no folder; expected a dataset with corpus.jsonl, queries.jsonl and qrels/. "
            "Check dataset.path, or write one: querylect data get NAME --to FOLDER."
        )
    return folder


def corpus_file(folder: Path) -> Path:
    """The corpus of a BEIR folder: `corpus.jsonl`, or that gzipped; it need not exist."""
    return plain_or_gzipped(folder / "corpus.jsonl")


def documents_of(folder: Path, span: Span = ALL_LINES) -> Iterator[Document]:
    """Yield the documents of a BEIR folder, one at a time; ids may repeat. Raises DataError for an invalid line."""
    for _, row in read_rows(corpus_file(folder), _DocumentRow, span):
        yield Document(row.id, row.title, row.text, row.date)


def no_document(path: Path) -> DataError:
    return DataError(f'{path} holds no document; expected lines like {{"_id": …, "title": …, "text": …}}. Fill it.')


def questions_of(folder: Path) -> Iterator[tuple[Question, dict[str, object]]]:
    """Yield each question of a BEIR folder and the further fields of its line. Raises DataError for an invalid or
    repeated question."""
    path = plain_or_gzipped(folder / "queries.jsonl")
    topics = [file for name in NAMES if (file := plain_or_gzipped(folder / name)).is_file()]
    if path.is_file() or not topics:
        rows = read_rows(path, QuestionRow)
    else:
        rows = (
            (location, QuestionRow.model_validate({"_id": name, "text": text}))
            for location, name, text in read_topics(topics[0])
        )
    ids: set[str] = set()
    for location, row in rows:
        if row.id in ids:
            raise DataError(f"{location}: a second question has the id {row.id!r}. Rename one.")
        ids.add(row.id)
        rewrite = row.reference_rewrite.strip()
        yield Question(row.id, row.text, row.options, row.history, rewrite, row.excluded_ids), row.model_extra or {}


def read_meta(folder: Path) -> Meta:
    """The folder's `meta.json`; the name is by default that of the folder. Raises DataError if it is not valid."""
    path = folder / "meta.json"
    meta = checked(Meta.model_validate_json, path.read_bytes() if path.is_file() else "{}", str(path))
    return meta.model_copy(update={"name": meta.name or folder.resolve().name})


def save_beir(dataset: Dataset, path: str | Path, fields: Mapping[str, Mapping[str, object]] | None = None) -> None:
    """Write a dataset as a new BEIR folder that `load_beir` reads back equal (but for its notes).

    `fields` are further fields of a question, by its id. Raises as `new_beir_folder` and the writers below.
    """
    with new_beir_folder(path) as folder:
        write_documents(folder, dataset.corpus)
        write_questions(folder, dataset.splits, fields)
        write_meta(folder, {"name": dataset.name, "licence": dataset.licence, **judging(dataset)})


@contextmanager
def new_beir_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder, which becomes `path` when the block ends.

    Raises DataError if `path` exists already, StorageError if the block cannot write its files.
    """
    target = Path(path).expanduser()
    refuse_existing(target)
    with atomic_folder(target) as folder:
        yield folder


def refuse_existing(target: Path) -> None:
    """Raise DataError if the folder to write exists already."""
    if target.exists():
        raise DataError(f"{target} exists already; a dataset is only written to a new folder. Name another.")


def write_documents(folder: Path, documents: Iterable[Document]) -> set[str]:
    """Write `corpus.jsonl`; return the ids. Raises DataError for a repeated or invalid id, and without any document."""
    ids: set[str] = set()

    def rows() -> Iterator[dict[str, object]]:
        for document in documents:
            if document.id in ids:
                raise DataError(f"two documents have the id {document.id!r}; ids must be unique. Rename one.")
            ids.add(_writable(document.id))
            metadata = {"metadata": {"date": document.date}} if document.date else {}
            yield {"_id": document.id, "title": document.title, "text": document.text, **metadata}

    write_rows(folder / "corpus.jsonl", rows())
    if not ids:
        raise no_document(folder / "corpus.jsonl")
    return ids


def link_corpus(corpus: Path, folder: Path) -> None:
    """Put the corpus file of one BEIR folder into another: the same file on the same disk, else a copy of its date."""
    file = corpus_file(corpus)
    try:
        os.link(file, folder / file.name)
    except OSError:
        shutil.copy2(file, folder / file.name)


def write_questions(
    folder: Path, splits: Mapping[str, Split], fields: Mapping[str, Mapping[str, object]] | None = None
) -> None:
    """Write `queries.jsonl` and `qrels/`; where no split has judgements, each question names its split.

    `fields` are further fields of a question, by its id. Raises DataError for an id that two questions have or that
    does not fit into a qrel file.
    """
    questions: dict[str, Question] = {}
    rows: list[dict[str, object]] = []
    judged = any(split.relevant for split in splits.values())
    for name, split in splits.items():
        qrels = ["\t".join(COLUMNS)]
        stem = "dev" if name == "validation" else name
        for question in split.questions:
            if question.id not in questions:
                more = {} if judged else {"split": stem}
                rows.append(_question_row(question, {**more, **(fields or {}).get(question.id, {})}))
            if questions.setdefault(_writable(question.id), question) != question:
                raise DataError(f"two questions have the id {question.id!r}; ids must be unique. Rename one.")
            qrels += [f"{question.id}\t{document}\t{grade}" for document, grade in split.qrels[question.id].items()]
        if judged:
            (folder / "qrels").mkdir(exist_ok=True)
            write_lines(folder / "qrels" / f"{stem}.tsv", qrels)
    if splits:
        write_rows(folder / "queries.jsonl", rows)


def write_meta(folder: Path, meta: Mapping[str, object]) -> None:
    """Write `meta.json`, with the sha256 of every other file of the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
    write_lines(folder / "meta.json", [json.dumps({**meta, "sha256": digests}, ensure_ascii=False, indent=1)])


def judging(dataset: Dataset) -> dict[str, object]:
    """The fields of `meta.json` that say how judgements count."""
    return {"ignore_identical_ids": dataset.ignore_identical_ids, "relevance_level": dataset.relevance_level}


def _writable(identifier: str) -> str:
    if any(character in identifier for character in "\t\r\n"):
        raise DataError(f"the id {identifier!r} does not fit into a qrel file: it has a tab or line break. Rename it.")
    return identifier


def _question_row(question: Question, more: Mapping[str, object]) -> dict[str, object]:
    optional: dict[str, object] = {
        "options": question.options,
        "history": records_of(question.history),
        "reference_rewrite": question.reference_rewrite,
        "excluded_ids": question.excluded,
    }
    present = {name: value for name, value in optional.items() if value}
    return {"_id": question.id, "text": question.text, **present, **more}


def _qrel_file(folder: Path, stem: str) -> Path | None:
    files = (plain_or_gzipped(folder / "qrels" / f"{stem}{suffix}") for suffix in _QREL_SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def _unjudged_splits(folder: Path) -> dict[str, Split]:
    """The splits that the questions name themselves; empty for a folder without questions."""
    if not any(plain_or_gzipped(folder / name).is_file() for name in ("queries.jsonl", *NAMES)):
        return {}
    by_split: dict[str, list[Question]] = {name: [] for name in SPLITS}
    for question, more in questions_of(folder):
        if split := _SPLITS.get(str(more.get("split"))):
            by_split[split].append(question)
    return {
        name: Split(tuple(questions), {question.id: {} for question in questions})
        for name, questions in by_split.items()
        if questions
    }
