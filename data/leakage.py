"""Finds questions that occur in two splits, so that no test question is trained on.

Two questions are the same by id, or by text: equal after Unicode composition (NFC), case and white space. Such
questions are removed from the earlier split, which is logged. Those that are nearly the same (95 % of their letters
without the punctuation of sentences, in their order or with the words sorted) are reported, for a reader to judge.
"""

import hashlib
import logging
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

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
    match: Question

    def record(self) -> dict[str, object]:
        """The leak as a line of a file; `split` and `_id` name the question to leave out."""
        return {
            "split": self.split,
            "_id": self.question.id,
            "text": self.question.text,
            "criterion": self.criterion,
            "similarity": round(self.similarity, 4),
            "of": {"split": self.other_split, "_id": self.match.id, "text": self.match.text},
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


def exact_leaks(splits: Mapping[str, Split]) -> list[Leak]:
    """The questions of each split whose id or text a later split has."""
    pairs = combinations([name for name in SPLITS if name in splits], 2)
    return [leak for a, b in pairs for leak in same_questions(a, splits[a].questions, b, splits[b].questions)]


def near_leaks(splits: Mapping[str, Split]) -> list[Leak]:
    """The pairs of questions of two splits that are nearly the same, without those of `exact_leaks`."""
    pairs = combinations([name for name in SPLITS if name in splits], 2)
    return [leak for a, b in pairs for leak in near_questions(a, splits[a].questions, b, splits[b].questions)]


def without_leaks(name: str, splits: Mapping[str, Split], near: bool = False) -> tuple[dict[str, Split], list[str]]:
    """The splits without questions that a later split has, and notes on what was removed, which are logged too.

    With `near`, nearly equal questions are removed as well. The test split is unchanged. A split without remaining
    questions is dropped.
    """
    leaks = [*exact_leaks(splits), *(near_leaks(splits) if near else ())]
    notes = [f"{sentence} They are taken out of the earlier split." for sentence in described(name, leaks)]
    for note in notes:
        log.warning("%s", note)
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


def described(name: str, leaks: Iterable[Leak]) -> list[str]:
    """A sentence for each pair of splits that share questions, and for each that nearly share some."""
    groups: dict[tuple[str, str, str], list[Leak]] = defaultdict(list)
    for leak in leaks:
        relation = "are nearly the same as one" if leak.criterion == "near" else "are by id or text one"
        groups[leak.split, relation, leak.other_split].append(leak)
    return [
        f"{name}: {len({leak.question.id for leak in group})} questions of {split} {relation} of {later} (for instance "
        f"{group[0].question.text!r} and {group[0].match.text!r})."
        for (split, relation, later), group in groups.items()
    ]


def fingerprint(document: Document) -> bytes:
    """MD5 (16 bytes) of title and text as one string; the id does not count."""
    return hashlib.md5(document.contents.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def same_questions(
    split: str, questions: Sequence[Question], other_split: str, later: Sequence[Question]
) -> Iterator[Leak]:
    """The `questions` of a split whose id or text one of `later`, those of another split, has."""
    ids = {question.id: question for question in later}
    texts = {same_form(question.in_context): question for question in later}
    texts.pop("", None)
    for question in questions:
        if question.id in ids:
            yield Leak("id", 1.0, split, question, other_split, ids[question.id])
        elif (match := texts.get(same_form(question.in_context))) is not None:
            yield Leak("text", 1.0, split, question, other_split, match)


def near_questions(
    split: str, questions: Sequence[Question], other_split: str, later: Sequence[Question]
) -> Iterator[Leak]:
    """The pairs of `questions` and `later` that are nearly the same, without those of `same_questions`."""
    import numpy as np
    from rapidfuzz.fuzz import ratio
    from rapidfuzz.process import cdist

    same = {leak.question.id for leak in same_questions(split, questions, other_split, later)}
    right = [_near_forms(question) for question in later]
    for block in in_batches([question for question in questions if question.id not in same], _AT_ONCE):
        forms = [_near_forms(question) for question in block]
        plain, in_order = (
            cdist([a[kind] for a in forms], [b[kind] for b in right], scorer=ratio, score_cutoff=NEAR, dtype=np.float32)
            for kind in (0, 1)
        )
        scores = np.maximum(plain, in_order)
        for row, column in zip(*np.nonzero(scores), strict=True):
            yield Leak("near", float(scores[row, column]) / 100, split, block[row], other_split, later[column])


def _near_forms(question: Question) -> tuple[str, str]:
    """The text without punctuation of sentences, and that with its words sorted."""
    form = same_form(question.in_context)
    form = " ".join(_PUNCTUATION.sub(" ", form).split()) or form
    return form, " ".join(sorted(form.split()))
