"""Looks for questions that stand in two splits: what was trained on must not be called test."""

import re
from collections.abc import Sequence
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


def words(text: str) -> str:
    """The words of a text without case and punctuation."""
    return " ".join(_WORD.findall(text.casefold()))


def _ids(split: Split) -> set[str]:
    return {question.id for question in split.questions}


def _texts(split: Split) -> set[str]:
    return {words(question.text) for question in split.questions}
