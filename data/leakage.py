"""Looks for questions that stand in two splits: what was trained on must not be called test.

Three nets, from fine to wide: the same id, the same words, nearly the same letters (`near_overlap`, see minhash). The
first two are certain and are refused where they matter; the third is told, for a reader to judge.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from .types import Dataset, Question, Split

_ORDER = ("train", "validation", "test")
_WORD = re.compile(r"\w+")


def overlap(dataset: Dataset) -> list[str]:
    """One sentence for each pair of splits that share a question id or a question text; empty where none does.

    Texts are compared by their words, without case and punctuation.
    """
    return [
        f"{dataset.name}: {len(ids)} question ids and {len(texts)} question texts stand in both {first} and {second} "
        f"(for instance {min(ids or texts)!r}): figures for {second} are not held out."
        for first, second in combinations([name for name in _ORDER if name in dataset.splits], 2)
        for one, two in [(dataset.splits[first], dataset.splits[second])]
        for ids, texts in [(_ids(one) & _ids(two), _texts(one) & _texts(two))]
        if ids or texts
    ]


def overlap_with_train(name: str, split: str, questions: Sequence[Question], train: Sequence[Question]) -> list[str]:
    """What `overlap` says of questions of `split` beside those of the training split."""
    return overlap(Dataset(name, (), {"train": Split(train, {}), split: Split(questions, {})}))


def near_overlap_with_train(
    name: str, split: str, questions: Sequence[Question], train: Sequence[Question]
) -> list[str]:
    """What `near_overlap` says of questions of `split` beside those of the training split."""
    return near_overlap(Dataset(name, (), {"train": Split(train, {}), split: Split(questions, {})}))


def near_overlap(dataset: Dataset) -> list[str]:
    """One sentence for each pair of splits with questions of nearly the same letters, those of `overlap` left out."""
    from .minhash import THRESHOLD

    found = []
    for first, second in combinations([name for name in _ORDER if name in dataset.splits], 2):
        pairs = near_questions(dataset.splits[first].questions, dataset.splits[second].questions)
        if pairs:
            one, other = pairs[0]
            found.append(
                f"{dataset.name}: {len(pairs)} of {len(dataset.splits[second].questions)} questions of {second} are "
                f"nearly the same as one of {first} (for instance {other.text!r} and {one.text!r}; similarity of "
                f"letters {THRESHOLD} or more): look at them before you call {second} held out."
            )
    return found


def near_questions(left: Sequence[Question], right: Sequence[Question]) -> list[tuple[Question, Question]]:
    """(question of `left`, question of `right`) for each of `right` that nearly repeats one of `left`, not wholly."""
    from .minhash import near_duplicates

    known, ids = {words(question.text) for question in left}, {question.id for question in left}
    rest = [question for question in right if question.id not in ids and words(question.text) not in known]
    near = near_duplicates([question.text for question in left], [question.text for question in rest])
    return [(left[pair.left], rest[pair.right]) for pair in near]


def without_leaks(name: str, splits: Mapping[str, Split], near: bool = False) -> tuple[dict[str, Split], list[str]]:
    """The splits without questions of train that stand in validation or test, and of validation that stand in test.

    What is tested on stays whole. Questions are the same by id or by words; with `near` also by nearly the same
    letters. Notes say how many were taken out; a split that is left without a question is taken out as a whole.
    """
    kept: dict[str, Split] = {}
    notes: list[str] = []
    later: list[Question] = []
    for split in reversed([split for split in _ORDER if split in splits]):
        questions = list(splits[split].questions)
        ids, texts = {question.id for question in later}, {words(question.text) for question in later}
        close = {one.id for one, _ in _near_both(questions, later)} if near and later else set()
        held = [q for q in questions if q.id not in ids and words(q.text) not in texts and q.id not in close]
        if len(held) < len(questions):
            notes.append(
                f"{name}: {len(questions) - len(held)} of {len(questions)} questions of {split} are taken out: they "
                f"stand in a later split{', or nearly so' if near else ''}."
            )
        if held:
            kept[split] = Split(tuple(held), {question.id: splits[split].qrels[question.id] for question in held})
        later += questions
    return {split: kept[split] for split in _ORDER if split in kept}, notes


def _near_both(questions: Sequence[Question], later: Sequence[Question]) -> list[tuple[Question, Question]]:
    """(question, later one) for each of `questions` that nearly repeats one of `later`."""
    return [(question, one) for one, question in near_questions(later, questions)]


def words(text: str) -> str:
    """The words of a text without case and punctuation."""
    return " ".join(_WORD.findall(text.casefold()))


def _ids(split: Split) -> set[str]:
    return {question.id for question in split.questions}


def _texts(split: Split) -> set[str]:
    return {words(question.text) for question in split.questions}
