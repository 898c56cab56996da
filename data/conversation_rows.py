"""Rows of conversational question answering as TopiOCQA and QReCC publish them: one question of a conversation each.

A file is a JSON list of objects, or one object a line (.jsonl). `Conversation_no` and `Turn_no` name the question,
`Context` holds the questions and answers before it in turn. The split is the one that the file's name says.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..storage import parse_json
from .history import alternating
from .jsonl import read_records
from .rows import FETCH, id_of, string_of
from .types import Utterance

_SPLITS = {
    "train": "train",
    **dict.fromkeys(("dev", "valid", "validation"), "validation"),
    "test": "test",
}


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """One row, with its file and number."""

    path: Path
    number: int
    """From 1."""
    split: str
    fields: Mapping[str, Any]

    def text(self, *columns: str) -> str:
        """The first of these columns that the row has, without surrounding blanks; "" without any."""
        column = next((column for column in columns if self.fields.get(column) is not None), None)
        return "" if column is None else string_of(self.fields, column, self.path, self.number).strip()

    @property
    def conversation(self) -> str:
        """The split and the number of the conversation, which is only unique within a split."""
        return f"{self.split}-{self._number('Conversation_no')}"

    @property
    def id(self) -> str:
        return f"{self.conversation}_{self._number('Turn_no')}"

    @property
    def question(self) -> str:
        """Raises DataError where it is blank."""
        text = self.text("Question")
        if not text:
            raise DataError(
                f"{self.path}, row {self.number}: 'Question' is empty; expected a text. Correct or remove the row."
            )
        return text

    @property
    def context(self) -> tuple[Utterance, ...] | None:
        """The conversation before the question; None where the row has none. Raises DataError for no list of texts."""
        context = self.fields.get("Context")
        if context is None:
            return None
        if not isinstance(context, list) or not all(isinstance(text, str) for text in context):
            raise DataError(
                f"{self.path}, row {self.number}: 'Context' is {context!r}; expected a list of questions and answers "
                "in turn. Correct or remove the row."
            )
        return alternating(context)

    def _number(self, column: str) -> str:
        return id_of(self.fields, column, self.path, self.number)


def conversation_rows(folder: Path, stem: str) -> Iterator[ConversationRow]:
    """Yield the rows of the files of `folder` whose name contains `stem`: `.json`, `.jsonl` or `.jsonl.gz`.

    Raises DataError where there is no such file, and for a file that holds no rows.
    """
    files = [path for path in sorted(folder.iterdir()) if stem in path.name.lower() and _is_json(path)]
    if not files:
        raise DataError(f"{folder} holds no file *{stem}*.json; expected the published files of that name. {FETCH}")
    for path in files:
        words = path.name.lower().replace("-", "_").replace(".", "_").split("_")
        split = next((_SPLITS[word] for word in words if word in _SPLITS), "test")
        yield from (ConversationRow(path, number, split, fields) for number, fields in _rows(path))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if ".jsonl" in path.suffixes:
        yield from read_records(path, "questions of conversations, one a line")
        return
    rows = read_json(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} is no JSON list of objects. It may be a file of something else.")
    yield from enumerate(rows, start=1)


def read_json(path: Path) -> object:
    """The content of a JSON file. Raises DataError where it is none."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}). {FETCH}") from error
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error}). {FETCH}") from error


def _is_json(path: Path) -> bool:
    return path.is_file() and path.name.endswith((".json", ".jsonl", ".jsonl.gz"))
