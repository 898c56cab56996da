"""Question sets and corpora of the papers, whose columns are in known.yaml.

`pairs`: questions, each with a passage that answers it. `passages`: a corpus without questions. `answers`: questions
with right answers, which become a folder with one JSON-lines file for each split (docs/answers.md), or beside a corpus
a BEIR folder without judgements, to train on (docs/answers_reward.md).
"""

import string
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ..errors import DataError
from ..storage import json_object
from .beir import beir_folder, link_corpus, new_beir_folder, read_meta, write_meta
from .rows import document_id, raw_rows, write_rows
from .sampling import draw
from .types import Benchmark, Document, Question

Record = dict[str, Any]
"""A question with its right answer: `_id`, `text`, and `answers` or `options` and `answer`, a letter or text."""


class Layout(BaseModel):
    """Where a question set or corpus has what is read of it: names of columns."""

    splits: dict[str, str]
    """Split → pattern of its files; `corpus` for a corpus."""
    question: list[str] = []
    """The first of these that holds a text is the question."""
    answer: str = ""
    options: str = ""
    id: str = ""
    """Empty: rows are numbered."""
    title: str = ""
    text: str = ""


def open_pairs(name: str, folder: Path, layout: Layout) -> Benchmark:
    """Questions of a test split, each with its passages."""
    documents: dict[str, Document] = {}
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, int]] = {}
    skipped = 0
    for _, row in _rows(name, folder, layout, "test"):
        text = _question(row, layout)
        passages = [passage for passage in _texts(row.get(layout.answer)) if text]
        skipped += not passages
        for passage in passages:
            document = documents.setdefault(passage, Document(document_id(passage), "", passage))
            identifier = f"q{document_id(text)}"
            questions.setdefault(identifier, Question(identifier, text))
            qrels.setdefault(identifier, {})[document.id] = 1
    notes = [f"{name}: {skipped} rows without question or answer are left out."]
    return Benchmark(name, documents.values, questions, {"test": qrels}, notes)


def open_passages(name: str, folder: Path, layout: Layout) -> Benchmark:
    """A corpus, read on demand; rows without text are left out."""

    def documents() -> Iterator[Document]:
        for identifier, row in _rows(name, folder, layout, "corpus"):
            if text := _text(row.get(layout.text)):
                yield Document(identifier, _text(row.get(layout.title)), text)

    return Benchmark(name, documents)


def write_answers(
    name: str,
    licence: str,
    layout: Layout,
    folder: Path,
    target: Path,
    corpus: Path | None = None,
    validation: int = 0,
) -> list[str]:
    """Write the new folder `target` with the questions and right answers; return a report.

    With `corpus`, a BEIR folder, it is one too, and `validation` of the training questions, but at most half of them,
    become the split dev. Raises DataError for a missing file, an invalid row, and a set without usable rows.
    """
    records: dict[str, list[Record]] = {}
    skipped = 0
    for split in layout.splits:
        usable = [_record(*row, layout) for row in _rows(name, folder, layout, split)]
        records[split] = [record for record in usable if record is not None]
        skipped += len(usable) - len(records[split])
        if len({record["_id"] for record in records[split]}) < len(records[split]) or not records[split]:
            raise DataError(f"{folder}: {split} of {name} has no question with an answer, or repeats an id.")
    if corpus is not None:
        records = _with_dev(records, validation)
        meta = read_meta(beir_folder(corpus))
        licence += f"; the corpus {': '.join(filter(None, (meta.name, meta.licence)))}"
    with new_beir_folder(target) as new:
        if corpus is None:
            for split, of_split in records.items():
                write_rows(new / f"{split}.jsonl", of_split)
        else:
            link_corpus(beir_folder(corpus), new)
            rows = [{**record, "split": split} for split, of_split in records.items() for record in of_split]
            write_rows(new / "queries.jsonl", rows)
        write_meta(new, {"name": name, "licence": licence, "made_from": str(folder)})
    counts = ", ".join(f"{len(of_split):,} {split}" for split, of_split in records.items())
    left_out = f", {skipped} rows without question or answer left out"
    return [f"{name}: questions: {counts}{left_out}", f"licence: {licence}"]


def _with_dev(records: Mapping[str, list[Record]], validation: int) -> dict[str, list[Record]]:
    """The splits train, dev and test; sets with names of their own are test questions."""
    train = records.get("train", [])
    drawn = draw(train, min(validation, len(train) // 2), 0, lambda record: str(record["_id"]))
    splits = {
        "train": [record for record in train if record not in drawn],
        "dev": drawn,
        "test": [record for split, of_split in records.items() if split != "train" for record in of_split],
    }
    return {split: of_split for split, of_split in splits.items() if of_split}


def _record(identifier: str, row: Mapping[str, Any], layout: Layout) -> Record | None:
    """The record of a row; None for one without question or answer."""
    text, answers = _question(row, layout), list(_texts(row.get(layout.answer)))
    if not text or not answers:
        return None
    options, answer = row.get(layout.options), row.get(layout.answer)
    if not options:
        return {"_id": identifier, "text": text, "answers": answers}
    listed = list(options.values()) if isinstance(options, Mapping) else options
    letter = string.ascii_uppercase[answer] if isinstance(answer, int) else answer
    return {"_id": identifier, "text": text, "options": listed, "answer": letter}


def _rows(name: str, folder: Path, layout: Layout, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(id, row) of a split. An id is that of the row, else its file's folder and its number."""
    pattern = layout.splits[split]
    columns = [*layout.question, layout.answer, layout.options, layout.id, layout.title, layout.text]
    files = sorted(folder.glob(pattern))
    if not files:
        raise DataError(f"{folder} has no file {pattern} of {name}; expected its published files.")
    counts: Counter[str] = Counter()
    for path in files:
        prefix = path.parent.name if pattern.startswith("*/") else f"{name}-{split}"
        for row in _nested(path, split) if path.suffix == ".json" else (row for _, row in raw_rows(path, columns)):
            record_id = row.get(layout.id)
            identifier = f"{prefix}-{counts[prefix]:04d}" if record_id in (None, "") else str(record_id)
            yield identifier, row
            counts[prefix] += 1


def _nested(path: Path, split: str) -> Iterator[dict[str, Any]]:
    """The questions of one set in a JSON file of several: set → id → question."""
    questions = (json_object(path) or {}).get(split)
    if not isinstance(questions, dict):
        raise DataError(f"{path}: expected a JSON object with {split!r}: {{id: question}}.")
    yield from ({"_id": identifier, **row} for identifier, row in questions.items())


def _question(row: Mapping[str, Any], layout: Layout) -> str:
    return next(filter(None, (_text(row.get(column)) for column in layout.question)), "")


def _texts(value: object) -> Iterator[str]:
    """The texts in an answer: a text, a number, a list of answers, or an object with the text under ANSWER."""
    if isinstance(value, Mapping):
        yield from _texts(value.get("ANSWER"))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif (isinstance(value, str) and value.strip()) or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield str(value).strip()


def _text(value: object) -> str:
    return next(_texts(value), "")
