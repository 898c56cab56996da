"""A question index: a folder of questions, the contents that answer each, and their provenance, written atomically.

`corpus.jsonl` holds the questions in BEIR form, so that any retriever can index them like documents; `answers.jsonl`
the answerability matrix, one pair of a question and a content per line; `contents.jsonl` the contents that were asked
about, in corpus order. `questions.json` describes them and holds the sha256 of every file. All files are text; nothing
is ever unpickled. The folder is written by `querylect index questions` (questions/).
"""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...configs.section import Strict
from ...data.jsonl import read_records
from ...data.load import corpus_hash, document_record
from ...data.types import Document
from ...errors import DataError
from ...storage import data_sha256, text_sha256
from ..index.meta import read_description, verify_files

DESCRIPTION = "questions.json"
QUESTIONS, ANSWERS, CONTENTS = "corpus.jsonl", "answers.jsonl", "contents.jsonl"

Source = Literal["written", "vetted"]
"""Why a content is taken to answer a question: it was written for it, or people say so."""


class AnswerabilityEntry(Strict):
    """One entry of the answerability matrix."""

    question: str
    """Id of the question."""
    content: str
    """Id of the content that answers it."""
    source: Source


class Content(Strict):
    """One content of the corpus that the questions are about."""

    id: str
    hash: str
    """sha256 of id, title and text."""
    round: int = 0
    """The call that added it, from 0: that of a later one is newer."""


class Description(Strict):
    """The description of a question index."""

    format: Literal[1] = 1
    dataset: str
    licence: str
    corpus_hash: str
    """That of an index of the corpus; if `limit` left contents out, that of the contents asked about."""
    questions_hash: str
    """The corpus hash that an index of the questions must have."""
    questions: int
    asked: dict[str, object]
    """Models and prompt versions; {} where nothing was asked."""
    settings: dict[str, object]
    """Those of `questions`."""
    counts: dict[str, int]
    costs: dict[str, int | None]
    """Calls and tokens behind all answers that are kept; None where an endpoint did not say."""
    rounds: int
    """How many calls have brought new contents."""
    files: dict[str, str]
    """sha256 of each file."""

    @property
    def hash(self) -> str:
        """sha256 of everything that a ranking depends on."""
        return data_sha256([self.files[name] for name in (QUESTIONS, ANSWERS, CONTENTS)])


@dataclass(frozen=True, slots=True)
class QuestionIndex:
    """An opened question index."""

    path: Path
    description: Description

    def questions(self) -> list[Document]:
        """The questions in order, as documents without a title."""
        rows = read_records(self.path / QUESTIONS, "questions")
        return [Document(row["_id"], row["title"], row["text"]) for _, row in rows]

    def answers(self) -> list[AnswerabilityEntry]:
        """The answerability matrix, in the order of the questions."""
        return [AnswerabilityEntry.model_validate(row) for _, row in read_records(self.path / ANSWERS, "pairs")]

    def contents(self) -> dict[str, Content]:
        """The contents by id, in corpus order."""
        rows = read_records(self.path / CONTENTS, "contents")
        return {row["id"]: Content.model_validate(row) for _, row in rows}


def open_question_index(path: str | Path) -> QuestionIndex:
    """Open a question index without reading its files. IndexFolderError if the folder holds none."""
    folder = Path(path).expanduser()
    remedy = f"Write the questions: querylect index questions CONFIG --to {shlex.quote(str(folder))}."
    return QuestionIndex(folder, read_description(folder / DESCRIPTION, Description, remedy))


def verify_question_index(path: str | Path) -> QuestionIndex:
    """Open a question index and compare the sha256 of every file. Raises IndexFolderError."""
    opened = open_question_index(path)
    verify_files(opened.path, opened.description.files, "Write it again: querylect index questions.")
    return opened


def write_rows(
    folder: Path, questions: Sequence[Document], answers: Sequence[AnswerabilityEntry], contents: Sequence[Content]
) -> str:
    """Write the three files that a ranking depends on. Returns the hash of the questions."""
    rows = [{"_id": question.id, "title": question.title, "text": question.text} for question in questions]
    write_jsonl(folder / QUESTIONS, rows)
    write_jsonl(folder / ANSWERS, [answer.model_dump() for answer in answers])
    write_jsonl(folder / CONTENTS, [content.model_dump() for content in contents])
    return corpus_hash(questions)


def write_jsonl(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8", newline="\n")


def content_hash(document: Document) -> str:
    """sha256 of id, title and text of a content."""
    return hashlib.sha256(document_record(document)).hexdigest()


def question_id(text: str) -> str:
    """The id of a question: the same for texts that differ only in case and whitespace."""
    return f"q-{text_sha256(same_question(text))[:16]}"


def same_question(text: str) -> str:
    """The normalised text by which questions are compared: case-folded, with single spaces."""
    return " ".join(text.casefold().split())


def read_vetted(path: Path) -> list[tuple[str, list[str]]]:
    """Read vetted questions: lines of `{"question": TEXT, "contents": [ID, …]}`.

    Raises DataError naming a line of another form.
    """
    questions = []
    for number, row in read_records(path, "vetted questions"):
        text, contents = row.get("question"), row.get("contents")
        content_ids = contents if isinstance(contents, list) and all(isinstance(item, str) for item in contents) else []
        if not (isinstance(text, str) and text.strip() and content_ids):
            raise DataError(
                f'{path}, line {number}: expected {{"question": TEXT, "contents": [ID, …]}} with a question that is '
                "not blank and at least one content. Correct or remove the line."
            )
        questions.append((text.strip(), list(dict.fromkeys(content_ids))))
    return questions
