"""How queries are worded: word counts, TF-IDF, telling terms, and the profile of a dialect.

A word is a run of letters, digits and underscores, without case; of one letter, too ("vitamin c"). Nothing is stemmed
and no stop-word is dropped: they are part of a dialect.
"""

import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..statistics import bootstrap_ci
from .queries import Key, Query, System

Floats = NDArray[np.float64]
_WORD = re.compile(r"\w+")
PRIOR = 0.1
"""Strength of the prior of `telling_terms`: this share of all words of all systems."""
_GROUPS = 20
_RARE = 1e-12


@dataclass(frozen=True, slots=True)
class Value:
    """A mean with its 95% interval; without one where there is too little to tell."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """The manner of one retriever's queries. Means are over questions, so that each counts once."""

    words: Value
    """Words of a query."""
    question_marks: Value
    """Share of queries with a question mark."""
    stop_words: Value
    """Share of a query's words that are stop-words (the 179 English ones of NLTK, as bm25s has them)."""
    copied: Value | None
    """Share of a query's words that stand in its question; None where no question is known."""
    variety: Value
    """Different words among `variety_of` words: the type-token ratio of samples of one size."""


@dataclass(frozen=True, slots=True)
class Term:
    """A word that one retriever's queries have more often than the others'."""

    word: str
    z: float
    """Log-odds ratio over its standard error."""
    here: float
    """How often in 1,000 words of this retriever's queries."""
    elsewhere: float
    """How often in 1,000 words of the other retrievers' queries."""


@dataclass(frozen=True, slots=True)
class Words:
    """Word counts of queries over one vocabulary, in CSR form (queries, words)."""

    vocabulary: tuple[str, ...]
    counts: Any


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


def count_words(texts: Sequence[str]) -> Words:
    """Count the words of every text over the vocabulary of all of them, in alphabetical order."""
    from scipy.sparse import csr_matrix

    numbers: dict[str, int] = {}
    found, ends = array("i"), array("q", [0])
    for text in texts:
        found.extend(numbers.setdefault(word, len(numbers)) for word in words_of(text))
        ends.append(len(found))
    vocabulary = sorted(numbers)
    column = np.empty(len(vocabulary), dtype=np.int32)
    column[[numbers[word] for word in vocabulary]] = np.arange(len(vocabulary))
    columns = column[np.frombuffer(found, dtype=np.int32)] if found else np.empty(0, dtype=np.int32)
    counts = csr_matrix((np.ones(len(columns)), columns, np.array(ends)), shape=(len(texts), len(vocabulary)))
    counts.sum_duplicates()
    return Words(tuple(vocabulary), counts)


def tf_idf(counts: Any) -> Any:
    """TF-IDF of word counts, rows of length 1: count · (ln((1 + texts) / (1 + texts with the word)) + 1).

    This is scikit-learn's default weighting. A text without a word stays 0.
    """
    from scipy.sparse import diags

    texts, vocabulary = counts.shape
    having = np.bincount(counts.indices, minlength=vocabulary)
    weighted = counts @ diags(np.log((1 + texts) / (1 + having)) + 1)
    lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return (diags(1 / np.where(lengths > 0, lengths, 1)) @ weighted).tocsr()


def telling_terms(words: Words, parts: Sequence[slice], number: int) -> list[list[Term]]:
    """For each part of the queries the words that are most its own, against all other parts together.

    Log-odds ratio with an informative Dirichlet prior, as a z-score (Monroe, Colaresi and Quinn 2008, Fightin' Words,
    Political Analysis 16(4)): the prior is the counts of all parts, scaled down to `PRIOR` of them, so that a rare word
    needs much more than one occurrence to stand out.
    """
    totals = np.asarray(words.counts.sum(axis=0)).ravel()
    prior = PRIOR * totals
    found = []
    for part in parts:
        here = np.asarray(words.counts[part].sum(axis=0)).ravel()
        there = totals - here
        spread = np.sqrt(1 / (here + prior) + 1 / (there + prior))
        z = (_log_odds(here, prior) - _log_odds(there, prior)) / spread
        rate, other = 1000 * here / max(1.0, here.sum()), 1000 * there / max(1.0, there.sum())
        best = [at for at in np.argsort(-z, kind="stable")[:number] if z[at] > 0 and here[at] > 0]
        found.append([Term(words.vocabulary[at], float(z[at]), float(rate[at]), float(other[at])) for at in best])
    return found


def _log_odds(counts: Floats, prior: Floats) -> Floats:
    held = counts + prior
    odds: Floats = np.log(held / np.maximum(held.sum() - held, _RARE * held))  # the only word there is has no odds
    return odds


def variety_size(words: Words, parts: Sequence[slice]) -> int:
    """The number of words at which the variety of all parts is compared: half of what the smallest part has."""
    return max(1, int(min(words.counts[part].sum() for part in parts)) // 2)


def profile(system: System, counts: Any, size: int, *, resamples: int, seed: int) -> Profile:
    """The profile of a system's queries and their word counts; `size` is that of `variety_size`.

    Intervals are percentile bootstraps over questions; that of the variety is a delete-a-group jackknife, since a
    resample holds the same query twice and so fewer different words.
    """
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    stop = {part for word in STOPWORDS_EN_PLUS for part in words_of(word)}
    numbers: dict[Key, int] = {}
    groups = np.array([numbers.setdefault(key, len(numbers)) for key in system.keys])
    measured = np.array([_measures(query, stop) for query in system.queries])

    def mean(column: int) -> Value:
        known = np.isfinite(measured[:, column])
        sums, sizes = np.bincount(groups[known], measured[known, column]), np.bincount(groups[known])
        each = sums[sizes > 0] / sizes[sizes > 0]
        return Value(math.fsum(each) / len(each), *bootstrap_ci(each.tolist(), resamples, seed))

    return Profile(
        words=mean(0),
        question_marks=mean(1),
        stop_words=mean(2),
        copied=mean(3) if np.isfinite(measured[:, 3]).any() else None,
        variety=_variety(counts, groups, size),
    )


def _measures(query: Query, stop: set[str]) -> tuple[float, float, float, float]:
    """Words, whether there is a question mark, shares of stop-words and of copied words; NaN without a question."""
    words, asked = words_of(query.text), set(words_of(query.question))
    return len(words), "?" in query.text, _share(words, stop), _share(words, asked) if asked else math.nan


def _share(row: Sequence[str], of: set[str]) -> float:
    """Share of the words of `row` that are in `of`; 0 where there are none."""
    return sum(word in of for word in row) / max(1, len(row))


def _variety(counts: Any, groups: NDArray[np.int64], size: int) -> Value:
    """Different words expected among `size` words drawn without replacement (Hurlbert 1971), over `size`."""
    totals = np.asarray(counts.sum(axis=0)).ravel()
    whole = _rarefied(totals, size)
    number = min(_GROUPS, int(groups.max()) + 1)
    without = [
        _rarefied(totals - np.asarray(counts[np.flatnonzero(groups % number == group)].sum(axis=0)).ravel(), size)
        for group in range(number)
    ]
    kept = [value for value in without if value is not None]
    if whole is None or len(kept) < 2:
        return Value(0.0 if whole is None else whole, None, None)
    error = math.sqrt((len(kept) - 1) / len(kept) * sum((value - math.fsum(kept) / len(kept)) ** 2 for value in kept))
    return Value(whole, whole - 1.96 * error, whole + 1.96 * error)


def _rarefied(totals: Floats, size: int) -> float | None:
    """None where there are fewer than `size` words."""
    from scipy.special import gammaln

    every = float(totals.sum())
    if every < size:
        return None
    counts = totals[totals > 0]
    left = every - counts
    with np.errstate(invalid="ignore"):
        missed = np.exp(
            gammaln(left + 1) - gammaln(np.maximum(left - size, 0) + 1) - gammaln(every + 1) + gammaln(every - size + 1)
        )
    return float(np.where(left >= size, 1 - missed, 1.0).sum() / size)
