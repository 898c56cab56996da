"""Looks for questions that stand in two splits: what was trained on must not be called test."""

import re
from itertools import combinations

from .types import Dataset, Split

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


def _ids(split: Split) -> set[str]:
    return {question.id for question in split.questions}


def _texts(split: Split) -> set[str]:
    return {" ".join(_WORD.findall(question.text.casefold())) for question in split.questions}
