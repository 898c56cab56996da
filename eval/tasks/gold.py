"""Questions with their right answers, from JSON lines (docs/answers.md).

A line has `_id` and either `answers`, a list of alternative right answers, or `answer`, a single one; both may also be
in `metadata`, where BEIR puts them. Multiple choice also has `options`, a list of texts or an object from letter to
text; `answer` is then the letter or the text of the right option. For content questions, the qrels of a BEIR folder
give the documents that answer each test question.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...configs.llm import ReaderConfig
from ...configs.paper import TaskConfig
from ...configs.schema import EnvironmentConfig
from ...data.beir import load_beir
from ...data.history import parse_history
from ...data.jsonl import identifier_of, plain_or_gzipped, read_records, refuse_list_text, strings_of, text_of
from ...data.packaged import dataset_folder
from ...data.sampling import QuestionSample, draw, sampled
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
        return "" if index is None else string.ascii_uppercase[index]

    def score(self, answer: str, names: Sequence[str]) -> dict[str, float]:
        """The accuracy of an answer to multiple choice, else its metrics `names`; each in [0, 1]."""
        if self.right is not None:
            return {"accuracy": float(self.letter(answer) == string.ascii_uppercase[self.right])}
        return score_text(answer, self.answers, names)


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
    """Read the file `reading.gold`; by default the dataset's queries.jsonl.

    Raises DataError where the file has no usable line.
    """
    if reading.gold is not None:
        return read_gold(Path(reading.gold).expanduser())
    return read_gold(plain_or_gzipped(dataset_folder(env.dataset.path) / "queries.jsonl"))


def read_gold(path: Path, options: Sequence[str] = ()) -> GoldSet:
    """Read a file of right answers. `options` are those of every question of a file without them.

    Lines without a right answer, or with several parts of one answer, are counted and skipped. Raises DataError for a
    broken line, a duplicate id, an answer that is the text of a list, open questions mixed with multiple choice, and a
    file without any right answer.
    """
    by_id: dict[str, Gold] = {}
    skipped = 0
    for number, row in read_records(path, "right answers, one question per line"):
        line = f"{path}, line {number}"
        identifier = identifier_of(row, path, number)
        if identifier in by_id:
            raise DataError(f"{line}: the id {identifier!r} stands twice. Remove one of the two lines.")
        gold = _gold(identifier, row, path, number)
        if gold is not None and gold.right is None and options:
            gold = _with_options(gold, options)
        if gold is None:
            skipped += 1
        else:
            by_id[identifier] = gold
    if not by_id:
        raise DataError(
            f"{path} holds no right answer ({skipped} lines without one); expected a field 'answers' (a list of texts) "
            "or 'answer'. Give another file with --gold."
        )
    if len({gold.right is None for gold in by_id.values()}) > 1:
        raise DataError(f"{path} mixes open questions and multiple choice. Give each its own file.")
    return GoldSet(str(path), by_id, skipped)


def _gold(identifier: str, row: Mapping[str, Any], path: Path, number: int) -> Gold | None:
    line, metadata = f"{path}, line {number}", row.get("metadata")
    row = {**metadata, **row} if isinstance(metadata, dict) else row
    text = text_of(row, "text" if "text" in row else "question", path, number, "")
    excluded = tuple(strings_of(row, "excluded_ids", path, number)) if "excluded_ids" in row else ()
    try:
        question = Question(identifier, text, history=parse_history(row.get("history")), excluded=excluded)
    except ValueError as error:
        raise DataError(f"{line}: {error}. Correct the line.") from error
    if row.get("options"):
        return _choice(question, row, line)
    answers = row.get("answers", row.get("answer"))
    if isinstance(answers, list) and "answers" not in row and len(answers) > 1:
        return None  # parts of one answer, such as the spans of TAT-QA, are not alternatives
    answers = answers if isinstance(answers, list) else [answers]
    refuse_list_text(answers, line)
    texts = tuple(str(answer) for answer in answers if isinstance(answer, str | int | float) and str(answer).strip())
    return Gold(question, answers=texts) if texts else None


def _choice(question: Question, row: Mapping[str, Any], line: str) -> Gold:
    options, answer = row["options"], row.get("answer")
    if not isinstance(options, dict):
        options = dict(zip(string.ascii_uppercase, options, strict=False))
    matches = [index for index, letter in enumerate(options) if letter == answer]
    matches = matches or [index for index, text in enumerate(options.values()) if text == answer]
    if len(matches) != 1 or len(options) < 2:
        raise DataError(
            f"{line}: 'answer' is {answer!r}; expected the letter or the text of one of 2 to 26 options, which are "
            f"{row['options']!r}."
        )
    return Gold(replace(question, options=tuple(options.values())), right=matches[0])


def _with_options(gold: Gold, options: Sequence[str]) -> Gold | None:
    """The question with common options; None where the answer is not exactly one of them."""
    answers = {normalise(answer) for answer in gold.answers}
    matches = [index for index, option in enumerate(options) if normalise(option) in answers]
    return Gold(replace(gold.question, options=tuple(options)), matches[0]) if len(matches) == 1 else None


@dataclass(frozen=True, slots=True)
class Items:
    """The questions of a task, and the number skipped for lack of a text or of a right answer."""

    items: Sequence[Gold]
    skipped: int
    sample: QuestionSample | None = None
    """Set where only a sample of them is asked."""


def read_items(name: str, task: TaskConfig, limit: int | None, seed: int) -> Items:
    """The usable questions of a paper's task, or a sample of `limit` of them drawn with `seed`.

    Raises DataError where the data is missing (the message has its origin), of another kind, or without questions.
    """
    path = Path(task.data).expanduser()
    if not path.exists():
        raise DataError(f"{path}, the data of the task {name!r}, does not exist (tasks.{name}.data). {task.about}")
    skipped = 0
    if task.kind == "content":
        items = _contents(path)
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
    return Items(selected, skipped, sampled(len(selected), len(items), limit, seed))


def _contents(path: Path) -> list[Gold]:
    dataset = load_beir(path, ["test"])
    documents = {document.id: document for document in dataset.corpus}
    split = dataset.splits["test"]
    return [
        Gold(question, contents=tuple(documents[name] for name in relevant(split.qrels[question.id])))
        for question in split.questions
    ]
