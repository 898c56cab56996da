"""Wording of queries: word counts, TF-IDF, distinctive terms, and profiles.

A word is a run of letters, digits and underscores in lower case; single letters count ("vitamin c"). There is no
stemming, and stop-words are kept, because both are part of how queries are worded.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..statistics import bootstrap_ci
from .draws import Floats
from .queries import Query, QuestionKey, RetrieverQueries

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_WORD = re.compile(r"\w+")
PRIOR = 0.1
"""Strength of the prior of `telling_terms`, as a share of the word counts of all systems."""
_GROUPS = 20
_RARE = 1e-12


@dataclass(frozen=True, slots=True)
class Value:
    """A mean with its 95% interval; no interval where there is too little data."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """Wording statistics of one retriever's queries. Means are over questions: each question counts once."""

    words: Value
    """Words per query."""
    question_marks: Value
    """Share of queries with a question mark."""
    stop_words: Value
    """Share of a query's words that are stop-words (the 179 English ones of NLTK, as bm25s has them)."""
    copied: Value | None
    """Share of a query's words that occur in its question; None where no question is known."""
    variety: Value
    """Distinct words among `variety_of` words, as a share: the type-token ratio at a common sample size."""


@dataclass(frozen=True, slots=True)
class TellingTerm:
    """A word that is more frequent in one retriever's queries than in the others'."""

    word: str
    z: float
    """Log-odds ratio over its standard error."""
    here: float
    """Frequency per 1,000 words in this retriever's queries."""
    elsewhere: float
    """Frequency per 1,000 words in the other retrievers' queries."""


@dataclass(frozen=True, slots=True)
class WordCounts:
    """Word counts of queries over one vocabulary, in CSR form (queries, words)."""

    vocabulary: tuple[str, ...]
    counts: "csr_matrix"


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


def count_words(texts: Sequence[str]) -> WordCounts:
    """Count the words of each text over the common vocabulary, in alphabetical order."""
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import CountVectorizer

    if not any(map(words_of, texts)):
        return WordCounts((), csr_matrix((len(texts), 0)))
    vectorizer = CountVectorizer(tokenizer=words_of, token_pattern=None, lowercase=False, dtype=np.float64)
    counts = vectorizer.fit_transform(texts)
    return WordCounts(tuple(vectorizer.get_feature_names_out().tolist()), counts)


def tf_idf(counts: "csr_matrix") -> "csr_matrix":
    """TF-IDF of word counts with rows of length 1: count · (ln((1 + texts) / (1 + texts with the word)) + 1).

    A text without words stays 0.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    return TfidfTransformer().fit_transform(counts)


def telling_terms(words: WordCounts, parts: Sequence[slice], number: int) -> list[list[TellingTerm]]:
    """For each part of the queries, its `number` most distinctive words against all other parts together.

    Log-odds ratio with an informative Dirichlet prior, as a z-score (Monroe, Colaresi and Quinn 2008, Fightin' Words,
    Political Analysis 16(4)): the prior is the counts of all parts times `PRIOR`, so that a rare word needs many
    occurrences to stand out.
    """
    totals = np.asarray(words.counts.sum(axis=0)).ravel()
    prior = PRIOR * totals
    terms = []
    for part in parts:
        counts = np.asarray(words.counts[part].sum(axis=0)).ravel()
        other_counts = totals - counts
        spread = np.sqrt(1 / (counts + prior) + 1 / (other_counts + prior))
        z = (_log_odds(counts, prior) - _log_odds(other_counts, prior)) / spread
        rate, other_rate = 1000 * counts / max(1.0, counts.sum()), 1000 * other_counts / max(1.0, other_counts.sum())
        best = [i for i in np.argsort(-z, kind="stable")[:number] if z[i] > 0 and counts[i] > 0]
        terms.append(
            [TellingTerm(words.vocabulary[i], float(z[i]), float(rate[i]), float(other_rate[i])) for i in best]
        )
    return terms


def _log_odds(counts: Floats, prior: Floats) -> Floats:
    smoothed = counts + prior
    # a vocabulary of a single word leaves no other counts: bound the denominator
    odds: Floats = np.log(smoothed / np.maximum(smoothed.sum() - smoothed, _RARE * smoothed))
    return odds


def variety_size(words: WordCounts, parts: Sequence[slice]) -> int:
    """Sample size in words for comparing variety: half the words of the smallest part."""
    return max(1, int(min(words.counts[part].sum() for part in parts)) // 2)


def profile(system: RetrieverQueries, counts: "csr_matrix", size: int, *, resamples: int, seed: int) -> Profile:
    """The profile of a system's queries, from their word counts; `size` comes from `variety_size`.

    Intervals are percentile bootstraps over questions. The variety uses a delete-a-group jackknife instead, because a
    resample repeats queries and so has fewer distinct words.
    """
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    stop = {part for word in STOPWORDS_EN_PLUS for part in words_of(word)}
    numbers: dict[QuestionKey, int] = {}
    groups = np.array([numbers.setdefault(key, len(numbers)) for key in system.keys])
    measured = np.array([_measures(query, stop) for query in system.queries])

    def mean(column: int) -> Value:
        valid = np.isfinite(measured[:, column])
        sums, sizes = np.bincount(groups[valid], measured[valid, column]), np.bincount(groups[valid])
        means = sums[sizes > 0] / sizes[sizes > 0]
        return Value(math.fsum(means) / len(means), *bootstrap_ci(means.tolist(), resamples, seed))

    return Profile(
        words=mean(0),
        question_marks=mean(1),
        stop_words=mean(2),
        copied=mean(3) if np.isfinite(measured[:, 3]).any() else None,
        variety=_variety(counts, groups, size),
    )


def _measures(query: Query, stop: set[str]) -> tuple[float, float, float, float]:
    """Word count, question mark, share of stop-words, share of copied words (NaN without a question)."""
    words, question = words_of(query.text), set(words_of(query.question))
    return len(words), "?" in query.text, _share(words, stop), _share(words, question) if question else math.nan


def _share(row: Sequence[str], vocabulary: set[str]) -> float:
    """Share of the words of `row` that are in `vocabulary`; 0 where there are none."""
    return sum(word in vocabulary for word in row) / max(1, len(row))


def _variety(counts: "csr_matrix", groups: NDArray[np.int64], size: int) -> Value:
    """Expected distinct words among `size` words drawn without replacement (Hurlbert 1971), divided by `size`."""
    totals = np.asarray(counts.sum(axis=0)).ravel()
    variety = _rarefied(totals, size)
    number = min(_GROUPS, int(groups.max()) + 1)
    leave_one_out = [
        _rarefied(totals - np.asarray(counts[np.flatnonzero(groups % number == group)].sum(axis=0)).ravel(), size)
        for group in range(number)
    ]
    values = [value for value in leave_one_out if value is not None]
    if variety is None or len(values) < 2:
        return Value(0.0 if variety is None else variety, None, None)
    error = math.sqrt(
        (len(values) - 1) / len(values) * sum((value - math.fsum(values) / len(values)) ** 2 for value in values)
    )
    return Value(variety, variety - 1.96 * error, variety + 1.96 * error)


def _rarefied(totals: Floats, size: int) -> float | None:
    """The expected share for `_variety`; None where there are fewer than `size` words."""
    from scipy.special import gammaln

    total = float(totals.sum())
    if total < size:
        return None
    counts = totals[totals > 0]
    left = total - counts
    with np.errstate(invalid="ignore"):
        missed = np.exp(
            gammaln(left + 1) - gammaln(np.maximum(left - size, 0) + 1) - gammaln(total + 1) + gammaln(total - size + 1)
        )
    return float(np.where(left >= size, 1 - missed, 1.0).sum() / size)
