"""Is an answer right? Exact match, F1 and accuracy, after the usual normalisation.

Exact match and F1 are those of SQuAD (Rajpurkar et al. 2016, and 2018 for empty answers): lower case, no punctuation,
no articles, single spaces; the best over the right answers counts. Accuracy is 1 where a right answer stands, word for
word, somewhere in the answer, or, for multiple choice, where the chosen option is the right one.
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
    """Lower case without punctuation and articles, with single spaces between the words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 where the answer is one of the right ones, else 0."""
    return float(any(normalise(answer) == normalise(one) for one in right))


def f1(answer: str, right: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over words, against the nearest right answer; in [0, 1]."""
    return max(_f1(normalise(answer).split(), normalise(one).split()) for one in right)


def contains(answer: str, right: Sequence[str]) -> float:
    """1 where the words of a right answer follow one another somewhere in the answer, else 0."""
    said = f" {normalise(answer)} "
    return float(any(f" {wanted} " in said for one in right if (wanted := normalise(one))))


def letter(place: int) -> str:
    """The letter of an option, counted from 0."""
    return string.ascii_uppercase[place]


def chosen(answer: str, options: Sequence[str]) -> int | None:
    """Which option an answer names, counted from 0; None where it names none.

    It may be the letter alone ("B", "(b)."), a letter that the answer begins with ("B) aspirin"), the last letter after
    the word answer ("The answer is B"), or the words of exactly one option.
    """
    text = answer.strip()
    named = _NAMED.findall(text)
    for found in (_ALONE.match(text), _LEADING.match(text)):
        if found:
            return _place(found[1], options)
    if named:
        return _place(named[-1], options)
    same = [place for place, option in enumerate(options) if normalise(option) == normalise(text)]
    return same[0] if len(same) == 1 and normalise(text) else None


def _place(said: str, options: Sequence[str]) -> int | None:
    place = string.ascii_uppercase.index(said.upper())
    return place if place < len(options) else None


def _f1(said: Sequence[str], wanted: Sequence[str]) -> float:
    if not said or not wanted:
        return float(said == wanted)
    shared = sum((Counter(said) & Counter(wanted)).values())
    return 2 * shared / (len(said) + len(wanted))
