"""Answer metrics: exact match, F1 and accuracy, after the usual normalisation.

Exact match and F1 are those of SQuAD (Rajpurkar et al. 2016, and 2018 for empty answers): lower case, no punctuation,
no articles, single spaces; the best value over the right answers counts. Accuracy is 1 where the answer contains a
right answer word for word or, for multiple choice, where the chosen option is right.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_ALONE = re.compile(r"\W*([A-Za-z])\W*\Z")
_LEADING = re.compile(r"\(?([A-Za-z])[).:]+(?=\s|\Z)")
_NAMED = re.compile(r"\b[Aa]nswer(?: is)?\s*:?\s*\**\(?([A-Z])\b")


def normalise(text: str) -> str:
    """Lower-case the text, remove punctuation and articles, and collapse spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 where the answer equals a right answer, else 0."""
    return float(any(normalise(answer) == normalise(reference) for reference in right))


def f1(answer: str, right: Sequence[str]) -> float:
    """F1 over words against the best-matching right answer; in [0, 1]."""
    return best_overlap(answer, right)[2]


def best_overlap(answer: str, right: Sequence[str]) -> tuple[float, float, float]:
    """Precision, recall and F1 over words, of the right answer with the best F1; each in [0, 1]."""
    return max((_overlap(answer, reference) for reference in right), key=lambda scores: scores[2])


def contains(answer: str, right: Sequence[str]) -> float:
    """1 where the answer contains the words of a right answer consecutively, else 0."""
    text = f" {normalise(answer)} "
    return float(any(f" {phrase} " in text for reference in right if (phrase := normalise(reference))))


def letter(index: int) -> str:
    """The letter of an option, counted from 0."""
    return string.ascii_uppercase[index]


def chosen(answer: str, options: Sequence[str]) -> int | None:
    """The index of the option that an answer names; None where it names none.

    Recognised forms: the letter alone ("B", "(b)."), a leading letter ("B) aspirin"), the last letter after the word
    answer ("The answer is B"), or the words of exactly one option.
    """
    text = answer.strip()
    letters = _NAMED.findall(text)
    for match in (_ALONE.match(text), _LEADING.match(text)):
        if match and (index := _option_index(match[1], options)) is not None:
            return index
    if letters:
        return _option_index(letters[-1], options)
    matching = [index for index, option in enumerate(options) if normalise(option) == normalise(text)]
    return matching[0] if len(matching) == 1 and normalise(text) else None


def _option_index(option_letter: str, options: Sequence[str]) -> int | None:
    index = string.ascii_uppercase.index(option_letter.upper())
    return index if index < len(options) else None


def _overlap(answer: str, right: str) -> tuple[float, float, float]:
    """All 1 where both are empty, all 0 where one is."""
    predicted, expected = normalise(answer).split(), normalise(right).split()
    if not predicted or not expected:
        return (float(predicted == expected),) * 3
    shared = sum((Counter(predicted) & Counter(expected)).values())
    return shared / len(predicted), shared / len(expected), 2 * shared / (len(predicted) + len(expected))
