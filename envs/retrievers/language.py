"""Retrievers with a query language, and what holds for every language.

A *native* query is one text in the language, which goes to the engine as it is written. It comes from a model, so it is
bounded before the engine sees it; what the bounds or the engine refuse is an answer (`Found.error`), and an engine that
is down or did not finish is a failed search. A *text* has its words quoted and joined by OR, so that every plan that is
not native can be searched too.
"""

import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...configs.environment import EnvironmentConfig
from ...data.types import Document
from ...logs import Progress
from ..index import Documents
from ..plan import Probe
from .base import NOTHING, Retriever, RetrieverFactory, Scored

HITS_BOUND = 10_000
"""Most documents that are counted as hits."""
MAX_CHARACTERS, MAX_WORDS, MAX_PAIRS, MAX_NESTING, MAX_PREFIXES, MIN_PREFIX = 2000, 64, 128, 16, 8, 3
"""What a native query may have: characters, words, pairs of equal words (a repetition takes FTS5 time by its square),
parentheses inside each other, words with `*`, and the fewest letters before it."""
MAX_ERROR = 200
"""Most characters of an error, which may quote the query."""
ORDERS = {
    "score": "Matching documents are ranked by BM25.",
    "date": "Matching documents are listed by date, the newest first, and not by relevance.",
}
"""What `env.order` means, for prompts."""
_DATES = "dates.json"
_BARE = r"[\w\x1a\x80-\U0010ffff]"
_OPERATOR = re.compile(rf'("[^"]*"?)|(?<!{_BARE})(?:AND|OR|NOT|NEAR(?=\s*\())(?!{_BARE})')
"""A phrase, in which FTS5 has no operators, or an operator, which is no part of a bareword."""
_WORD, _PREFIX = re.compile(r"[^\W_](?:[^\W_]|[\u0300-\u0331])*"), re.compile(r'([^\W_]*)"?\s*\*')
"""A word goes on over the accents that engines fold."""


class Found(NamedTuple):
    """What a native query found."""

    ranking: Scored = NOTHING
    hits: int = 0
    """Documents that match, counted up to HITS_BOUND."""
    error: str | None = None
    """Why the query was refused, in the engine's words."""


class LanguageRetriever(Retriever):
    """Ranks probes as any retriever, and also native queries."""

    @abstractmethod
    def ask(self, queries: Sequence[str], limits: Sequence[int]) -> list[Found]:
        """What each native query finds: at most limits[i] documents. It must not depend on the batch or on the limit.

        Raises EnvironmentUnavailableError where the engine is down or did not finish.
        """


class LanguageFactory(RetrieverFactory):
    """Keeps the dates of the documents until the parts are merged."""

    rules: str
    """Of the query language, in five lines."""
    orders: Mapping[str, str] = ORDERS

    @classmethod
    def query_language(cls, config: EnvironmentConfig) -> str:
        return f"{cls.rules}\n{cls.orders[config.order]}"

    def write_part(self, folder: Path, documents: Sequence[Document], progress: Progress | None = None) -> None:
        """Write the dates of one block of the corpus."""
        (folder / _DATES).write_text(json.dumps([document.date for document in documents]), encoding="utf-8")

    def by_date(self, parts: Sequence[Path], documents: Documents) -> npt.NDArray[np.int64]:
        """The positions of the documents (n,), newest first; those of one date, or without any, in the order of a hash
        of their ids."""
        dates = list(chain.from_iterable(json.loads((part / _DATES).read_bytes()) for part in parts))
        hashed = sorted(
            range(len(dates)),
            key=lambda position: blake2b(documents.id(position).encode("utf-8", "surrogatepass")).digest(),
        )
        return np.array(sorted(hashed, key=dates.__getitem__, reverse=True), dtype=np.int64)  # a stable sort


def refusal(query: str) -> str | None:
    """Why a native query is not sent to an engine; None if it is."""
    if len(query) > MAX_CHARACTERS:
        return f"the query has {len(query)} characters; at most {MAX_CHARACTERS} are read"
    if not query.strip():
        return "the query is empty"
    if "\0" in query or any("\ud800" <= sign <= "\udfff" for sign in query):
        return "the query holds a character that no text has (NUL or half a surrogate pair)"
    words = words_of(_OPERATOR.sub(r"\1", query).lower())
    if len(words) > MAX_WORDS:
        return f"the query has {len(words)} words; at most {MAX_WORDS} are read"
    if sum(times**2 for times in Counter(words).values()) > MAX_PAIRS:
        return "the query repeats its words too often; write each word once"
    deepest = max(accumulate((sign == "(") - (sign == ")") for sign in query))
    if deepest > MAX_NESTING:
        return f"the query has {deepest} parentheses inside each other; at most {MAX_NESTING} are read"
    prefixes = _PREFIX.findall(query)
    if len(prefixes) > MAX_PREFIXES:
        return f"the query has {len(prefixes)} words with *; at most {MAX_PREFIXES} are read"
    for prefix in prefixes:
        if len(prefix) < MIN_PREFIX:
            return f"{prefix}* begins too many words; write at least {MIN_PREFIX} letters before the *"
    return None


def words_of(text: str) -> list[str]:
    """The words of a text, in order and with repetitions; none holds a sign of a query language."""
    return _WORD.findall(text)


def searched(probe: Probe, by_date: bool) -> Iterator[tuple[list[str], float]]:
    """The words, in lower case, and the weight of each text of a probe that is searched. Listed by date, a weight only
    says that: it is above 0."""
    for term in probe.terms:
        if (words := words_of(term.text.lower())) and (term.weight > 0 or (term.weight < 0 and not by_date)):
            yield words, term.weight


def any_of(words: Sequence[str]) -> str:
    """The query for documents with at least one of the words."""
    return " OR ".join(f'"{word}"' for word in words)


def readable(text: str) -> str:
    """A document's text as engines take it: no NUL, and no half of a surrogate pair."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode()
