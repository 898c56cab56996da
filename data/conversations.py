"""TopiOCQA (Adlakha et al. 2022) and QReCC (Anantha et al. 2021): questions of conversations.

A file is a JSON list of objects, or one object a line (.jsonl); the split is the one that its name says.
`Conversation_no` and `Turn_no` name the question, `Context` holds the questions and answers before it in turn.

The passages lie beside the questions: `corpus.jsonl` in BEIR's form, else the files in `collection/` as they are
published, JSON lines with `id` and `contents`, or tab-separated lines of id, text and title. Without them, the corpus
of TopiOCQA is the gold passages of all questions, which is far easier to search.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field, StringConstraints

from ..errors import DataError
from .beir import corpus_file, documents_of
from .history import alternating
from .rows import Id, Row, Text, read_lines, read_rows
from .types import Benchmark, Document, Question

_SPLITS = {"train": "train", **dict.fromkeys(("dev", "valid", "validation"), "validation"), "test": "test"}


class _Passage(Row):
    id: Id
    title: Text = ""
    text: str = Field(validation_alias=AliasChoices("contents", "text"))


class _Turn(Row):
    conversation: Id = Field(alias="Conversation_no")
    turn: Id = Field(alias="Turn_no")
    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Field(alias="Question")
    context: list[str] | None = Field(None, alias="Context")
    rewrite: Text = Field("", validation_alias=AliasChoices("Truth_rewrite", "Rewrite"))
    answer: Text = Field("", validation_alias=AliasChoices("Truth_answer", "Answer"))
    passages: list[str] | None = Field(None, alias="Truth_passages")
    gold: _Passage | None = Field(None, alias="Gold_passage")

    def as_question(self, split: str, context: list[str], rewrite: str = "") -> Question:
        """The question of this turn, after those texts."""
        name = f"{split}-{self.conversation}_{self.turn}"
        return Question(name, self.question, history=alternating(context), reference_rewrite=rewrite.strip())


def open_topiocqa(folder: Path) -> Benchmark:
    """Read `topiocqa_train.json` and `topiocqa_dev.json`; relevant is the `Gold_passage` of a question."""
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    gold: dict[str, Document] = {}
    for split, turn in _turns(folder, "topiocqa"):
        question = turn.as_question(split, turn.context or [])
        questions[question.id] = question
        if passage := turn.gold:
            gold.setdefault(passage.id, Document(passage.id, passage.title, passage.text))
            qrels.setdefault(split, {})[question.id] = {passage.id: 1}
    files = _passage_files(folder)
    notes = [] if files else [f"topiocqa: the corpus is the {len(gold)} gold passages; {folder} has no others."]
    return Benchmark("topiocqa", lambda: _passages(files) if files else gold.values(), questions, qrels, notes)


def open_qrecc(folder: Path) -> Benchmark:
    """Read files such as `qrecc_train.json` or `scai-qrecc21-test-ground-truth.json`.

    Relevant are the `Truth_passages` that the SCAI-QReCC shared task judged. The rewrite by a person is `Rewrite`, or
    `Truth_rewrite` in the files of the task. Where a row has no `Context`, the questions and answers of the rows before
    it in its conversation are its history. Raises DataError where there are no passages.
    """
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    conversations: dict[tuple[str, str], list[str]] = {}
    for split, turn in _turns(folder, "qrecc"):
        earlier = conversations.setdefault((split, turn.conversation), [])
        question = turn.as_question(split, earlier if turn.context is None else turn.context, turn.rewrite)
        questions[question.id] = question
        earlier += [question.text, turn.answer.strip()]
        if turn.passages:
            qrels.setdefault(split, {})[question.id] = dict.fromkeys(turn.passages, 1)
    files = _passage_files(folder)
    if not files:
        raise DataError(f"{folder} holds no passages; expected corpus.jsonl, or .jsonl or .tsv files in collection/.")
    return Benchmark("qrecc", lambda: _passages(files), questions, qrels)


def _turns(folder: Path, stem: str) -> Iterator[tuple[str, _Turn]]:
    """Split and fields of each row of the files of `folder` whose name contains `stem`."""
    files = [path for path in sorted(folder.iterdir()) if re.search(rf"{stem}.*\.jsonl?(\.gz)?$", path.name.lower())]
    if not files:
        raise DataError(f"{folder} holds no file *{stem}*.json; expected the published files of that name.")
    for path in files:
        words = re.split(r"[-_.]", path.name.lower())
        split = next((_SPLITS[word] for word in words if word in _SPLITS), "test")
        yield from ((split, turn) for _, turn in read_rows(path, _Turn))


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
            yield from (Document(row.id, row.title, row.text) for _, row in read_rows(path, _Passage))
        else:
            for number, line in read_lines(path):
                identifier, text, title = (*line.split("\t"), "")[:3]
                if number > 1 or identifier != "id":  # a header
                    yield Document(identifier, title, text)
