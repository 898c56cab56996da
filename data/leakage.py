"""Finds questions that occur in two splits, so that no test question is trained on.

Three criteria, from strict to loose: the same id, the same words, nearly the same letters or words (`near_texts.py`).
The first two are certain, and such questions are removed from the earlier split; the third is reported, for a reader to
judge. Words are compared without case, punctuation, accents and invisible characters, in one form of compatible
characters (NFKC).
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Literal

from ..errors import DataError
from ..storage import write_lines
from .folding import folded
from .jsonl import read_records
from .near_texts import near_duplicates
from .types import SPLITS, Dataset, Document, Question, Split

_WORD = re.compile(r"\w+")

Criterion = Literal["id", "words", "letters"]


@dataclass(frozen=True, slots=True)
class Leak:
    """A question that is, or nearly is, a question of another split."""

    criterion: Criterion
    similarity: float
    """1 for the same id or words; else as `near_texts.similarity`."""
    split: str
    question: Question
    """The question to leave out."""
    other_split: str
    other: Question

    def record(self) -> dict[str, object]:
        """The leak as a line of a file; `split` and `_id` name the question to leave out."""
        return {
            "split": self.split,
            "_id": self.question.id,
            "text": self.question.text,
            "criterion": self.criterion,
            "similarity": round(self.similarity, 4),
            "of": {"split": self.other_split, "_id": self.other.id, "text": self.other.text},
        }


def exact_leaks(splits: Mapping[str, Split]) -> list[Leak]:
    """The questions of each split whose id or words a later split has."""
    return [
        leak
        for first, second in _pairs(splits)
        for leak in _same(first, splits[first].questions, second, splits[second].questions)
    ]


def trained_on(split: str, questions: Sequence[Question], train: Sequence[Question]) -> list[Leak]:
    """The questions of `split` whose id or words a training question has."""
    return _same(split, questions, "train", train)


def near_leaks(splits: Mapping[str, Split]) -> list[Leak]:
    """The pairs of questions of two splits that are nearly the same, without those of `exact_leaks`."""
    return [
        Leak("letters", value, first, question, second, duplicate)
        for first, second in _pairs(splits)
        for question, duplicate, value in near_questions(splits[first].questions, splits[second].questions)
    ]


def near_questions(left: Sequence[Question], right: Sequence[Question]) -> list[tuple[Question, Question, float]]:
    """(left, right, similarity) of the pairs that are nearly, but not exactly, the same."""
    ids, texts = {question.id for question in right}, {words(question.in_context) for question in right}
    remaining = [question for question in left if question.id not in ids and words(question.in_context) not in texts]
    near = near_duplicates([words(q.in_context) for q in remaining], [words(q.in_context) for q in right])
    return [(remaining[pair.left], right[pair.right], pair.similarity) for pair in near]


def overlap(dataset: Dataset) -> list[str]:
    """One sentence for each pair of splits that share a question id or a question text (`exact_leaks`)."""
    return [
        f"{dataset.name}: {_distinct(leaks, 'id')} question ids and {_distinct(leaks, 'words')} question texts stand "
        f"in both {first} and {second} (for instance {_example(leaks)!r}): figures for {second} are not held out."
        for (first, second), leaks in _by_pair(exact_leaks(dataset.splits))
    ]


def near_overlap(dataset: Dataset, leaks: Iterable[Leak] | None = None) -> list[str]:
    """One sentence for each pair of splits with near-duplicate questions (`leaks`; None: those of `near_leaks`)."""
    swapped = [
        replace(leak, split=leak.other_split, question=leak.other, other_split=leak.split, other=leak.question)
        for leak in (near_leaks(dataset.splits) if leaks is None else leaks)
    ]
    return [
        describe_near(dataset.name, near, len(dataset.splits[split].questions))
        for (split, _), near in _by_pair(swapped)
    ]


def describe_left_out(leaks: Sequence[Leak], questions: int, file: str) -> str:
    """A sentence on questions of a split that are left out because they were trained on."""
    near = ", or nearly so" if any(leak.criterion == "letters" for leak in leaks) else ""
    return (
        f"{_ids(leaks)} of {questions} {leaks[0].split} questions are left out, because they are training questions by "
        f"id or words{near}; {file} lists them (for instance {leaks[0].question.text!r})."
    )


def overlap_with_train(name: str, split: str, questions: Sequence[Question], train: Sequence[Question]) -> list[str]:
    """`overlap` of the questions of `split` with the training questions."""
    return overlap(Dataset(name, (), {"train": Split(train, {}), split: Split(questions, {})}))


def near_trained_on(split: str, questions: Sequence[Question], train: Sequence[Question]) -> list[Leak]:
    """The questions of `split` that are nearly the same as a training question, without those of `trained_on`."""
    near = near_questions(questions, train)
    return [Leak("letters", value, split, question, "train", other) for question, other, value in near]


def describe_near(name: str, leaks: Sequence[Leak], questions: int) -> str:
    """A sentence on near-duplicate questions of one split, which has so many `questions`."""
    first = leaks[0]
    return (
        f"{name}: {_ids(leaks)} of {questions} questions of {first.split} are nearly the same as one of "
        f"{first.other_split} (for instance {first.question.text!r} and {first.other.text!r}): look at them before you "
        f"call {first.split} held out."
    )


def without_leaks(name: str, splits: Mapping[str, Split], near: bool = False) -> tuple[dict[str, Split], list[str]]:
    """The splits without training questions that are in validation or test, and validation questions that are in test.

    The test split is unchanged. Questions are equal by id or by words; with `near` also by nearly the same letters.
    Notes say how many were removed. A split without remaining questions is dropped.
    """
    leaks = [*exact_leaks(splits), *(near_leaks(splits) if near else ())]
    cleaned = without(splits, ((leak.split, leak.question.id) for leak in leaks))
    notes = [
        f"{name}: {removed} of {len(splits[split].questions)} questions of {split} are taken out: they stand in a "
        f"later split{', or nearly so' if near else ''}."
        for split in reversed(SPLITS)
        if split in splits and (removed := len(splits[split].questions) - _size(cleaned, split))
    ]
    return cleaned, notes


def without(splits: Mapping[str, Split], left_out: Iterable[tuple[str, str]]) -> dict[str, Split]:
    """The splits without these questions, given as (split, id). A split without remaining questions is dropped."""
    ids = set(left_out)
    remaining = {
        name: tuple(question for question in split.questions if (name, question.id) not in ids)
        for name, split in splits.items()
    }
    return {
        name: Split(remaining[name], {question.id: splits[name].qrels[question.id] for question in remaining[name]})
        for name in SPLITS
        if remaining.get(name)
    }


def write_leaks(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Write records of leaks as JSON lines, one each. Raises OSError."""
    write_lines(path, (json.dumps(record, ensure_ascii=False) for record in records))


def read_left_out(path: Path) -> set[tuple[str, str]]:
    """(split, id) of each line of a file of leaks. Raises DataError for a missing file and a line without them."""
    left_out: set[tuple[str, str]] = set()
    for number, record in read_records(path, "questions to leave out, one per line"):
        split, identifier = record.get("split"), record.get("_id")
        if split not in SPLITS or not isinstance(identifier, str):
            raise DataError(
                f"{path}, line {number}: 'split' is {split!r} and '_id' is {identifier!r}; expected one of "
                f"{', '.join(SPLITS)} and the id of a question, as `querylect data check --leaks` writes them."
            )
        left_out.add((split, identifier))
    return left_out


def words(text: str) -> str:
    """The words of a text, case-folded and without punctuation and accents."""
    return " ".join(_WORD.findall(folded(text)))


def fingerprint(document: Document) -> bytes:
    """MD5 (16 bytes) of title and text as one string; the id does not count."""
    return hashlib.md5(document.contents.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def unique(documents: Iterable[Document]) -> tuple[Document, ...]:
    """The documents without repeated passages; the first of each is kept."""
    by_fingerprint: dict[bytes, Document] = {}
    for document in documents:
        by_fingerprint.setdefault(fingerprint(document), document)
    return tuple(by_fingerprint.values())


def _same(split: str, questions: Sequence[Question], other_split: str, earlier: Sequence[Question]) -> list[Leak]:
    ids, texts = {match.id: match for match in earlier}, {words(match.in_context): match for match in earlier}
    same: list[Leak] = []
    for question in questions:
        if question.id in ids:
            same.append(Leak("id", 1.0, split, question, other_split, ids[question.id]))
        elif (match := texts.get(words(question.in_context))) is not None:
            same.append(Leak("words", 1.0, split, question, other_split, match))
    return same


def _pairs(splits: Mapping[str, Split]) -> list[tuple[str, str]]:
    return list(combinations([name for name in SPLITS if name in splits], 2))


def _by_pair(leaks: Iterable[Leak]) -> list[tuple[tuple[str, str], list[Leak]]]:
    by_pair: dict[tuple[str, str], list[Leak]] = {}
    for leak in leaks:
        by_pair.setdefault((leak.split, leak.other_split), []).append(leak)
    return list(by_pair.items())


def _ids(leaks: Iterable[Leak]) -> int:
    return len({leak.question.id for leak in leaks})


def _distinct(leaks: Iterable[Leak], criterion: Criterion) -> int:
    return len({leak.question.id for leak in leaks if leak.criterion == criterion})


def _example(leaks: Iterable[Leak]) -> str:
    """The id of a question, if an id is shared, else the text of one."""
    leak = min(leaks, key=lambda leak: leak.criterion)
    return leak.question.id if leak.criterion == "id" else leak.question.text


def _size(splits: Mapping[str, Split], name: str) -> int:
    return len(splits[name].questions) if name in splits else 0
