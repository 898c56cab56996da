"""Finds questions that occur in two splits, so that no test question is trained on.

Two questions are the same by id, or by text: equal after Unicode composition (NFC), case and white space. Such
questions are removed from the earlier split, which is logged. Those that are nearly the same (95 % of their letters
without the punctuation of sentences, in their order or with the words sorted) are reported, for a reader to judge.
"""

import hashlib
import json
import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from ..errors import DataError
from ..storage import write_lines
from .jsonl import read_records
from .sampling import in_batches
from .types import SPLITS, Document, Question, Split

log = logging.getLogger(__name__)

NEAR = 95
"""Least `rapidfuzz.fuzz.ratio`, in percent, of nearly equal questions."""
_WORD = re.compile(r"\w+")
_PUNCTUATION = re.compile(r"[.,;:!?\"'()…。！？、，¿¡«»“”‘’]+")
_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class Leak:
    """A question that is, or nearly is, a question of another split."""

    criterion: Literal["id", "text", "near"]
    similarity: float
    """1 for the same id or text; else the ratio of equal letters, in [0, 1]."""
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


def same_form(text: str) -> str:
    """Equal for texts that differ only in Unicode composition, case and white space."""
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).split())


def words(text: str) -> str:
    """The words of a text without case, punctuation, accents and invisible characters, in compatible characters (NFKC):
    for comparing what texts say, not whether they are the same."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
        plain = (
            character
            for character in decomposed
            if not "\u0300" <= character <= "\u036f" and unicodedata.category(character) != "Cf"
        )
        text = unicodedata.normalize("NFC", "".join(plain))
    return " ".join(_WORD.findall(text.lower()))


def trained_on(split: str, questions: Sequence[Question], train: Sequence[Question]) -> list[Leak]:
    """The questions of `split` whose id or text a training question has."""
    return list(_same(split, questions, "train", train))


def near_trained_on(split: str, questions: Sequence[Question], train: Sequence[Question]) -> list[Leak]:
    """The questions of `split` that are nearly the same as a training question, without those of `trained_on`."""
    return list(_near(split, questions, "train", train))


def exact_leaks(splits: Mapping[str, Split]) -> list[Leak]:
    """The questions of each split whose id or text a later split has."""
    return [leak for a, b in _pairs(splits) for leak in _same(a, splits[a].questions, b, splits[b].questions)]


def near_leaks(splits: Mapping[str, Split]) -> list[Leak]:
    """The pairs of questions of two splits that are nearly the same, without those of `exact_leaks`."""
    return [leak for a, b in _pairs(splits) for leak in _near(a, splits[a].questions, b, splits[b].questions)]


def without_leaks(name: str, splits: Mapping[str, Split], near: bool = False) -> tuple[dict[str, Split], list[str]]:
    """The splits without questions that a later split has, and notes on what was removed, which are logged too.

    With `near`, nearly equal questions are removed as well. The test split is unchanged. A split without remaining
    questions is dropped.
    """
    leaks = [*exact_leaks(splits), *(near_leaks(splits) if near else ())]
    notes = []
    for split in reversed(SPLITS):
        removed = {leak.question.id: leak for leak in leaks if leak.split == split}
        if removed:
            example = next(iter(removed.values()))
            notes.append(
                f"{name}: {len(removed)} of {len(splits[split].questions)} questions of {split} are taken out: they "
                f"stand in a later split{', or nearly so' if near else ''} (for instance {example.question.text!r}, "
                f"in {example.other_split} {example.other.text!r})."
            )
            log.warning("%s", notes[-1])
    return without(splits, ((leak.split, leak.question.id) for leak in leaks)), notes


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


def overlap(name: str, leaks: Iterable[Leak]) -> list[str]:
    """One sentence for each pair of splits with the same questions."""
    sentences = []
    for (split, other), pair in _by_pair(leaks).items():
        by_id, by_text = ([leak for leak in pair if leak.criterion == criterion] for criterion in ("id", "text"))
        example = by_id[0].question.id if by_id else by_text[0].question.text
        sentences.append(
            f"{name}: {_count(by_id)} question ids and {_count(by_text)} question texts stand in both {split} and "
            f"{other} (for instance {example!r}): figures for {other} are not held out."
        )
    return sentences


def overlap_with_train(name: str, split: str, questions: Sequence[Question], train: Sequence[Question]) -> list[str]:
    """`overlap` of the training questions with those of `split`."""
    return overlap(name, _same("train", train, split, questions))


def describe_near(name: str, leaks: Sequence[Leak], questions: int) -> str:
    """A sentence on near-duplicate questions of one split, which has so many `questions`."""
    first = leaks[0]
    return (
        f"{name}: {_count(leaks)} of {questions} questions of {first.split} are nearly the same as one of "
        f"{first.other_split} (for instance {first.question.text!r} and {first.other.text!r}): look at them."
    )


def near_overlap(name: str, splits: Mapping[str, Split], leaks: Iterable[Leak]) -> list[str]:
    """One sentence for each pair of splits with nearly equal questions."""
    return [describe_near(name, near, len(splits[split].questions)) for (split, _), near in _by_pair(leaks).items()]


def describe_left_out(leaks: Sequence[Leak], questions: int, file: str) -> str:
    """A sentence on questions of a split that are left out because they were trained on."""
    near = ", or nearly so" if any(leak.criterion == "near" for leak in leaks) else ""
    return (
        f"{_count(leaks)} of {questions} {leaks[0].split} questions are left out, because they are training questions "
        f"by id or text{near}; {file} lists them (for instance {leaks[0].question.text!r})."
    )


def write_leaks(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Write records of leaks as JSON lines. Raises OSError."""
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


def fingerprint(document: Document) -> bytes:
    """MD5 (16 bytes) of title and text as one string; the id does not count."""
    return hashlib.md5(document.contents.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def unique(documents: Iterable[Document]) -> tuple[Document, ...]:
    """The documents without repeated passages; the first of each is kept."""
    by_fingerprint: dict[bytes, Document] = {}
    for document in documents:
        by_fingerprint.setdefault(fingerprint(document), document)
    return tuple(by_fingerprint.values())


def _same(split: str, questions: Sequence[Question], later_split: str, later: Sequence[Question]) -> Iterator[Leak]:
    ids = {question.id: question for question in later}
    texts = {same_form(question.in_context): question for question in later}
    texts.pop("", None)
    for question in questions:
        if question.id in ids:
            yield Leak("id", 1.0, split, question, later_split, ids[question.id])
        elif (match := texts.get(same_form(question.in_context))) is not None:
            yield Leak("text", 1.0, split, question, later_split, match)


def _near(split: str, questions: Sequence[Question], later_split: str, later: Sequence[Question]) -> Iterator[Leak]:
    """The pairs by the text of `later`, the nearest first within a block; every pair is compared."""
    import numpy as np
    from rapidfuzz.fuzz import ratio
    from rapidfuzz.process import cdist

    same = {leak.question.id for leak in _same(split, questions, later_split, later)}
    left, right = [question for question in questions if question.id not in same], list(later)
    forms = [_near_forms(question) for question in right]
    for block in in_batches(left, _AT_ONCE):
        of_block = [_near_forms(question) for question in block]
        plain, in_order = (
            cdist(
                [form[kind] for form in of_block],
                [form[kind] for form in forms],
                scorer=ratio,
                score_cutoff=NEAR,
                dtype=np.float32,
            )
            for kind in (0, 1)
        )
        scores = np.maximum(plain, in_order)
        for row, column in zip(*np.nonzero(scores), strict=True):
            yield Leak("near", float(scores[row, column]) / 100, split, block[row], later_split, right[column])


def _near_forms(question: Question) -> tuple[str, str]:
    """The text without punctuation of sentences, and that with its words sorted."""
    form = same_form(question.in_context)
    form = " ".join(_PUNCTUATION.sub(" ", form).split()) or form
    return form, " ".join(sorted(form.split()))


def _pairs(splits: Mapping[str, Split]) -> list[tuple[str, str]]:
    return list(combinations([name for name in SPLITS if name in splits], 2))


def _by_pair(leaks: Iterable[Leak]) -> dict[tuple[str, str], list[Leak]]:
    by_pair: dict[tuple[str, str], list[Leak]] = {}
    for leak in leaks:
        by_pair.setdefault((leak.split, leak.other_split), []).append(leak)
    return by_pair


def _count(leaks: Iterable[Leak]) -> int:
    return len({leak.question.id for leak in leaks})
