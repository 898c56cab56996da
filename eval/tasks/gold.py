"""Questions with their right answers, from JSON lines (docs/answers.md).

A line has `_id` and either `answers`, a list of alternative right answers, or `answer`, a single one; both may also be
in `metadata`, where BEIR puts them. Multiple choice also has `options`, a list of texts or an object from letter to
text; `answer` is then the letter or the text of the right option. For content questions, the qrels of a BEIR folder
give the documents that answer each test question.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from pydantic import AliasChoices, Field

from ...configs.llm import ReaderConfig
from ...configs.paper import TaskConfig
from ...configs.schema import EnvironmentConfig
from ...data.beir import load_beir
from ...data.corpus import dataset_folder
from ...data.history import History
from ...data.rows import Id, Row, Text, Texts, checked, plain_or_gzipped, read_records, refuse_list_text
from ...data.sampling import draw, sampled
from ...data.types import Document, Question, relevant
from ...errors import DataError
from ...storage import data_sha256
from .metrics import normalise, score_text
from .reader import chosen


@dataclass(frozen=True, slots=True)
class Gold:
    """The right answer of one question."""

    question: Question
    """Its text is "" where the line has none."""
    right: int | None = None
    """Multiple choice: the index of the right option."""
    answers: tuple[str, ...] = ()
    """Open questions: alternative right answers."""
    contents: tuple[Document, ...] = ()
    """Content questions: the documents that answer it."""

    def letter(self, answer: str) -> str:
        """Multiple choice: the letter of the option that an answer names; "" where it names none."""
        index = chosen(answer, self.question.options)
        return "" if index is None else ascii_uppercase[index]

    def score(self, answer: str, names: Sequence[str]) -> dict[str, float]:
        """The accuracy of an answer to multiple choice, else its metrics `names`; each in [0, 1]."""
        if self.right is not None:
            return {"accuracy": float(self.letter(answer) == ascii_uppercase[self.right])}
        return score_text(answer, self.answers, names)


class _GoldRow(Row):
    id: Id = Field(alias="_id")
    text: Text = Field("", validation_alias=AliasChoices("text", "question"))
    history: History = ()
    excluded_ids: Texts = ()


@dataclass(frozen=True, slots=True)
class GoldSet:
    """All right answers of a source; `skipped` counts its lines without a usable answer."""

    source: str
    by_id: Mapping[str, Gold]
    skipped: int

    @property
    def digest(self) -> str:
        """sha256 of what is right."""
        return data_sha256([[name, gold.right, *gold.answers] for name, gold in sorted(self.by_id.items())])

    @property
    def choice(self) -> bool:
        """Whether the questions are multiple choice."""
        return any(gold.right is not None for gold in self.by_id.values())


def gold_answers(env: EnvironmentConfig, reading: ReaderConfig) -> GoldSet:
    """Read the file `reading.gold`; by default the dataset's queries.jsonl. Raises as `read_gold`."""
    if reading.gold is not None:
        return read_gold(Path(reading.gold).expanduser())
    return read_gold(plain_or_gzipped(dataset_folder(env.dataset.path) / "queries.jsonl"))


def read_gold(path: Path, options: Sequence[str] = ()) -> GoldSet:
    """Read a file of right answers. `options` are those of every question of a file without them.

    Lines without a right answer, or with several parts of one answer, are counted and skipped. Raises DataError for a
    broken line, an answer that is the text of a list, open questions mixed with multiple choice, and a file without any
    right answer.
    """
    by_id: dict[str, Gold] = {}
    skipped = 0
    for location, row in read_records(path):
        gold = _gold({**(row.get("metadata") or {}), **row}, options, location)
        if gold is None:
            skipped += 1
        else:
            by_id[gold.question.id] = gold
    if not by_id:
        raise DataError(
            f"{path} holds no right answer ({skipped} lines without one); expected a field 'answers' (a list of texts) "
            "or 'answer'. Give another file with --gold."
        )
    if len({gold.right is None for gold in by_id.values()}) > 1:
        raise DataError(f"{path} mixes open questions and multiple choice. Give each its own file.")
    return GoldSet(str(path), by_id, skipped)


def _gold(row: Mapping[str, Any], options: Sequence[str], line: str) -> Gold | None:
    fields = checked(_GoldRow.model_validate, row, line)
    question = Question(fields.id, fields.text, history=fields.history, excluded=fields.excluded_ids)
    if row.get("options"):
        return _choice(question, row["options"], row.get("answer"), line)
    answers = row.get("answers", row.get("answer"))
    if isinstance(answers, list) and "answers" not in row and len(answers) > 1:
        return None  # parts of one answer, such as the spans of TAT-QA, are not alternatives
    answers = answers if isinstance(answers, list) else [answers]
    refuse_list_text(answers, line)
    texts = tuple(str(answer) for answer in answers if isinstance(answer, str | int | float) and str(answer).strip())
    if not options:
        return Gold(question, answers=texts) if texts else None
    right = {normalise(text) for text in texts}
    matches = [index for index, option in enumerate(options) if normalise(option) in right]
    return Gold(replace(question, options=tuple(options)), matches[0]) if len(matches) == 1 else None


def _choice(question: Question, options: list[str] | dict[str, str], answer: object, line: str) -> Gold:
    by_letter = options if isinstance(options, dict) else dict(zip(ascii_uppercase, options, strict=False))
    matches = [index for index, letter in enumerate(by_letter) if letter == answer]
    matches = matches or [index for index, text in enumerate(by_letter.values()) if text == answer]
    if len(matches) != 1:
        raise DataError(f"{line}: 'answer' is {answer!r}; expected the letter or the text of one of {options!r}.")
    return Gold(replace(question, options=tuple(by_letter.values())), right=matches[0])


def read_items(name: str, task: TaskConfig, limit: int | None, seed: int) -> tuple[list[Gold], dict[str, object]]:
    """The usable questions of a paper's task, or a sample of `limit` of them drawn with `seed`; and what results say of
    them: how many are `asked`, `skipped` for lack of a text or of a right answer, and the `sample`.

    Raises DataError where the data is missing (the message has its origin), of another kind, or without questions.
    """
    path = Path(task.data).expanduser()
    if not path.exists():
        raise DataError(f"{path}, the data of the task {name!r}, does not exist (tasks.{name}.data). {task.about}")
    skipped = 0
    if task.kind == "content":
        dataset = load_beir(path, ["test"])
        documents = {document.id: document for document in dataset.corpus}
        split = dataset.splits["test"]
        answering = {question.id: relevant(split.qrels[question.id]) for question in split.questions}
        items = [Gold(q, contents=tuple(documents[id_] for id_ in answering[q.id])) for q in split.questions]
    else:
        gold = read_gold(path, task.options)
        if gold.choice != (task.kind == "choice"):
            kind = "multiple choice" if gold.choice else "open questions"
            raise DataError(f"{path} holds {kind}, and tasks.{name}.kind is {task.kind!r}; see also .options.")
        items = [entry for entry in gold.by_id.values() if entry.question.text.strip()]
        skipped = gold.skipped + len(gold.by_id) - len(items)
    if not items:
        raise DataError(f"{path} holds no question that can be asked ({skipped} were passed over).")
    selected = draw(items, limit, seed, id_of=lambda item: item.question.id)
    sample = sampled(len(selected), len(items), limit, seed)
    return selected, {"asked": len(selected), "skipped": skipped, "sample": str(sample or "all")}
