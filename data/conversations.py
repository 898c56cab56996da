"""TopiOCQA (Adlakha et al. 2022) and QReCC (Anantha et al. 2021): questions of conversations.

A file is a JSON list of objects, or one object a line (.jsonl); the split is the one that its name says.
`Conversation_no` and `Turn_no` name the question, `Context` holds the questions and answers before it in turn.

The passages lie beside the questions: `corpus.jsonl` in BEIR's form, else the files in `collection/` as they are
published, JSON lines with `id` and `contents`, or tab-separated lines of id, text and title. Without them, the corpus
of TopiOCQA is the gold passages of all questions, which is far easier to search.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from .beir import corpus_file, documents_of
from .benchmark import Benchmark
from .history import alternating
from .jsonl import identifier_of, read_lines, text_of
from .judgements import splits_of
from .rows import read_rows
from .types import Document, Question

_SPLITS = {"train": "train", **dict.fromkeys(("dev", "valid", "validation"), "validation"), "test": "test"}
_Row = tuple[Path, int, str, Mapping[str, Any]]
"""File, number from 1, split, fields."""


def open_topiocqa(folder: Path) -> Benchmark:
    """Read `topiocqa_train.json` and `topiocqa_dev.json`; relevant is the `Gold_passage` of a question."""
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    gold: dict[str, Document] = {}
    for row in _rows(folder, "topiocqa"):
        file, number, split, fields = row
        question = _question(row, fields.get("Context") or [])
        questions[question.id] = question
        if passage := fields.get("Gold_passage"):
            identifier = identifier_of(passage, file, number, "id")
            title, text = text_of(passage, "title", file, number, ""), text_of(passage, "text", file, number, None)
            gold.setdefault(identifier, Document(identifier, title, text))
            qrels.setdefault(split, {})[question.id] = {identifier: 1}
    files = _passage_files(folder)
    notes = [] if files else [f"topiocqa: the corpus is the {len(gold)} gold passages; {folder} has no others."]
    splits = splits_of("topiocqa", questions, qrels, notes)
    return Benchmark("topiocqa", lambda: _passages(files) if files else gold.values(), splits, notes=notes)


def open_qrecc(folder: Path) -> Benchmark:
    """Read files such as `qrecc_train.json` or `scai-qrecc21-test-ground-truth.json`.

    Relevant are the `Truth_passages` that the SCAI-QReCC shared task judged. The rewrite by a person is `Rewrite`, or
    `Truth_rewrite` in the files of the task. Where a row has no `Context`, the questions and answers of the rows before
    it in its conversation are its history. Raises DataError where there are no passages.
    """
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    conversations: dict[tuple[str, str], list[str]] = {}
    for row in _rows(folder, "qrecc"):
        file, number, split, fields = row
        earlier_texts = conversations.setdefault((split, identifier_of(fields, file, number, "Conversation_no")), [])
        context = earlier_texts if fields.get("Context") is None else fields["Context"]
        question = _question(row, context, _text(row, "Truth_rewrite", "Rewrite"))
        questions[question.id] = question
        earlier_texts += [question.text, _text(row, "Truth_answer", "Answer")]
        if relevant := fields.get("Truth_passages"):
            qrels.setdefault(split, {})[question.id] = dict.fromkeys(relevant, 1)
    files = _passage_files(folder)
    if not files:
        raise DataError(f"{folder} holds no passages; expected corpus.jsonl, or .jsonl or .tsv files in collection/.")
    notes: list[str] = []
    splits = splits_of("qrecc", questions, qrels, notes)
    return Benchmark("qrecc", lambda: _passages(files), splits, notes=notes)


def _rows(folder: Path, stem: str) -> Iterator[_Row]:
    """The rows of the files of `folder` whose name contains `stem`."""
    files = [path for path in sorted(folder.iterdir()) if re.search(rf"{stem}.*\.jsonl?(\.gz)?$", path.name.lower())]
    if not files:
        raise DataError(f"{folder} holds no file *{stem}*.json; expected the published files of that name.")
    for path in files:
        words = re.split(r"[-_.]", path.name.lower())
        split = next((_SPLITS[word] for word in words if word in _SPLITS), "test")
        for number, fields in read_rows(path, ("Question", "Conversation_no", "Turn_no")):
            yield path, number, split, fields


def _question(row: _Row, context: list[str], rewrite: str = "") -> Question:
    file, number, split, fields = row
    conversation, turn = (identifier_of(fields, file, number, column) for column in ("Conversation_no", "Turn_no"))
    text = _text(row, "Question")
    if not text:
        raise DataError(f"{file}, row {number}: 'Question' is empty; expected a text. Correct or remove the row.")
    return Question(f"{split}-{conversation}_{turn}", text, history=alternating(context), reference_rewrite=rewrite)


def _text(row: _Row, *columns: str) -> str:
    """The first of these columns that the row has, without surrounding blanks; "" without any."""
    file, number, _, fields = row
    column = next((column for column in columns if fields.get(column) is not None), columns[0])
    return text_of(fields, column, file, number, "").strip()


def _passage_files(folder: Path) -> list[Path]:
    """The files with passages, in the order of their names; empty if there are none."""
    if corpus_file(folder).is_file():
        return [corpus_file(folder)]
    suffixes = (".jsonl", ".tsv", ".jsonl.gz", ".tsv.gz")
    return sorted(path for path in (folder / "collection").rglob("*") if path.name.endswith(suffixes))


def _passages(files: list[Path]) -> Iterator[Document]:
    for path in files:
        if path.name.startswith("corpus.jsonl"):
            yield from documents_of(path.parent)
        elif ".jsonl" in path.suffixes:
            for number, row in read_rows(path, ("id",)):
                text = text_of(row, "contents" if "contents" in row else "text", path, number, None)
                yield Document(identifier_of(row, path, number, "id"), text_of(row, "title", path, number, ""), text)
        else:
            for number, line in read_lines(path, "passages, one a line"):
                identifier, text, title = (*line.split("\t"), "")[:3]
                if number > 1 or identifier != "id":  # a header
                    yield Document(identifier, title, text)
