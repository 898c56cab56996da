"""Gold answers by question id, from JSON lines (docs/answers.md).

A line has `_id` and either `answers`, a list of alternative right answers, or `answer`, a single one; both may also be
in `metadata`, where BEIR puts them. Multiple choice also has `options`, a list of texts or an object from letter to
text; `answer` is then the letter or the text of the right option.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...configs.llm import ReaderConfig
from ...configs.schema import DatasetConfig, EnvironmentConfig
from ...data.beir import beir_folder
from ...data.history import parse_history
from ...data.jsonl import identifier_of, plain_or_gzipped, read_records
from ...data.load import load_dataset
from ...data.rows import refuse_list_text, strings_of
from ...data.types import Document, Question
from ...errors import ConfigError, DataError
from ...storage import data_sha256
from .choice import chosen
from .metrics import letter, score_text


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
    """Content questions of a paper: the documents that answer it."""

    def option(self, answer: str) -> str:
        """The letter of the option that an answer names; "" where it names none, and for open questions."""
        return letter(chosen(answer, self.question.options)) if answer and self.right is not None else ""

    def score(self, answer: str | None, option: str, names: Sequence[str]) -> dict[str, float | None]:
        """The metrics `names` of an answer that names the option with this letter, each in [0, 1].

        None where the answer is missing, and for all but the accuracy of multiple choice. Raises as `score_text`.
        """
        if answer is None:
            return dict.fromkeys(names)
        if self.right is not None:
            return {name: float(option == letter(self.right)) if name == "accuracy" else None for name in names}
        return dict(score_text(answer, self.answers, names))


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
    """Read the file `reading.gold`; by default the dataset's queries.jsonl, or for wordnet the defined words.

    Raises ConfigError where there is neither, DataError where the file has no usable line.
    """
    if reading.gold is not None:
        return read_gold(Path(reading.gold).expanduser())
    dataset = env.dataset
    if dataset.kind == "wordnet":
        return _defined_words(dataset)
    if dataset.kind != "beir" or dataset.path is None:
        raise ConfigError(
            f"the dataset of kind {dataset.kind!r} has no right answers. Give a file of them (--gold; in training "
            'reward.answer.gold), with lines like {"_id": …, "answers": […]}.'
        )
    return read_gold(plain_or_gzipped(beir_folder(dataset.path) / "queries.jsonl"))


def _defined_words(config: DatasetConfig) -> GoldSet:
    """The words of the synset that a definition defines."""
    dataset = load_dataset(config)
    words = {document.id: tuple(document.title.split(", ")) for document in dataset.corpus}
    by_id = {
        question.id: Gold(question, answers=words[synset])
        for split in dataset.splits.values()
        for question in split.questions
        for synset in split.qrels[question.id]
    }
    return GoldSet("the words that wordnet defines", by_id, 0)


def read_gold(path: Path) -> GoldSet:
    """Read a file of right answers. Lines without one, or with several parts of one answer, are counted and skipped.

    Raises DataError for a broken line, a duplicate id, an answer that is the text of a list, open questions mixed with
    multiple choice, and a file without any right answer.
    """
    by_id: dict[str, Gold] = {}
    skipped = 0
    for number, row in read_records(path, "right answers, one question per line"):
        identifier = identifier_of(row, path, number)
        if identifier in by_id:
            raise DataError(f"{path}, line {number}: the id {identifier!r} stands twice. Remove one of the two lines.")
        gold = _gold(identifier, row, f"{path}, line {number}")
        if gold is None:
            skipped += 1
            continue
        if "excluded_ids" in row:
            excluded = tuple(strings_of(row, "excluded_ids", path, number))
            gold = replace(gold, question=replace(gold.question, excluded=excluded))
        by_id[identifier] = gold
    if not by_id:
        raise DataError(
            f"{path} holds no right answer ({skipped} lines without one); expected a field 'answers' (a list of texts) "
            "or 'answer'. Give another file with --gold."
        )
    if len({gold.right is None for gold in by_id.values()}) > 1:
        raise DataError(f"{path} mixes open questions and multiple choice. Give each its own file.")
    return GoldSet(str(path), by_id, skipped)


def _gold(identifier: str, row: Mapping[str, Any], line: str) -> Gold | None:
    metadata = row.get("metadata")
    row = {**metadata, **row} if isinstance(metadata, dict) else row
    text = row.get("text", row.get("question", ""))
    if not isinstance(text, str):
        raise DataError(f"{line}: the question is {text!r}; expected a string. Correct it.")
    try:
        question = Question(identifier, text, history=parse_history(row.get("history")))
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
    options = row["options"]
    letters = list(options) if isinstance(options, dict) else list(string.ascii_uppercase[: len(options)])
    texts = list(options.values()) if isinstance(options, dict) else list(options)
    if not 2 <= len(texts) <= 26 or not all(isinstance(value, str) for value in texts):
        raise DataError(f"{line}: 'options' is {options!r}; expected 2 to 26 texts, or an object from letter to text.")
    answer = row.get("answer")
    matches = [index for index, option_letter in enumerate(letters) if option_letter == answer]
    matches = matches or [index for index, option in enumerate(texts) if option == answer]
    if len(matches) != 1:
        raise DataError(
            f"{line}: 'answer' is {answer!r}; expected the letter ({', '.join(map(str, letters))}) or the text of one "
            "option. Correct the line."
        )
    return Gold(replace(question, options=tuple(texts)), right=matches[0])
