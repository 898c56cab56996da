"""SQLite's FTS5 (https://sqlite.org/fts5.html): words that a query language combines, ranked by BM25 or listed by date.

An index is one file, opened read-only. Its rows are in the order of `env.order: date`, newest first and documents of
one date, or without any, in a fixed order of their hashes; equal scores have it too. FTS5's BM25 is a sum over the
phrases of a query, so a probe Σ wᵢ·BM25(tᵢ) is summed over one query for all words of one weight.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..index import Documents, mapped, whole
from ..plan import Probe
from .base import Scored, best
from .language import HITS_BOUND, Found, LanguageFactory, LanguageRetriever, any_of, readable, refusal, searched

DATABASE, ROWS = "fts5.sqlite", "fts5.rows.npy"
MAX_TEXT_WORDS = 256
"""Words of a text that are read."""
_BY_SCORE = "SELECT rowid, -bm25(d) FROM d WHERE d MATCH ? ORDER BY bm25(d), rowid LIMIT ?"
_BY_DATE = "SELECT rowid, -rowid FROM d WHERE d MATCH ? ORDER BY rowid LIMIT ?"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM d WHERE d MATCH ? LIMIT ?)"


class Fts5Factory(LanguageFactory):
    """An FTS5 table without contents, whose rows 1, 2, … stand for the documents at the positions of ROWS."""

    rules = """\
A document matches if it holds all words of the query; one that it lacks, and nothing is found.
a OR b: at least one of them. a NOT b: the first without the second. Write OR, NOT and AND in capitals.
"a b": the words next to each other. a*: words that begin with a. NEAR(a b, 5): at most 5 words between them.
Parentheses group: (a OR b) c. Without them, NOT binds closest, then AND, then OR.
Any other sign (comma, hyphen, apostrophe, question mark) is a syntax error outside of double quotes."""

    @property
    def settings(self) -> dict[str, object]:
        """With the tokenizer."""
        return super().settings | {"tokenizer": self._tokenizer}

    @property
    def _tokenizer(self) -> str:
        return "porter unicode61" if self.config.language == "english" else "unicode61"

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write the table."""
        documents = Documents(folder)
        rows = self.by_date(parts, documents)
        np.save(folder / ROWS, rows)
        database = sqlite3.connect(folder / DATABASE)
        database.execute(f"CREATE VIRTUAL TABLE d USING fts5(text, content='', tokenize='{self._tokenizer}')")
        texts = (readable(documents.at(position).contents) for position in rows.tolist())
        database.executemany("INSERT INTO d(rowid, text) VALUES (?, ?)", enumerate(texts, start=1))
        database.execute("INSERT INTO d(d) VALUES ('optimize')")
        database.commit()
        database.close()

    def load(self, folder: Path, documents: Documents) -> "Fts5":
        """Open the table read-only. Raises IndexFolderError."""
        with whole(folder):
            return Fts5(folder, self.config.order)


class Fts5(LanguageRetriever):
    """Searches a table, one thread at a time."""

    def __init__(self, folder: Path, order: str) -> None:
        uri = f"{(folder / DATABASE).resolve().as_uri()}?mode=ro&immutable=1"
        self._database = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._positions = mapped(folder / ROWS)
        self._by_date = order == "date"
        self._search('"a"', 1)  # raises where the table is damaged

    def ask(self, queries: Sequence[str], limits: Sequence[int]) -> list[Found]:
        """As LanguageRetriever.ask; the error is SQLite's own."""
        return [self._ask(query, limit) for query, limit in zip(queries, limits, strict=True)]

    def _ask(self, query: str, limit: int) -> Found:
        if reason := refusal(query):
            return Found(error=reason)
        try:
            ranking = self._documents(self._search(query, limit))
            (hits,) = self._database.execute(_COUNT, (query, HITS_BOUND)).fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:  # the file cannot be read, or no memory is left
                raise
            return Found(error=str(error))
        return Found(ranking, hits)

    def truncated(self, probe: Probe) -> int:
        """How many texts of a probe have more words than are read."""
        return sum(len(words) > MAX_TEXT_WORDS for words, _ in searched(probe, self._by_date))

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents: those with a word of it, by Σ wᵢ·BM25(tᵢ) > 0, or by
        date (`searched`)."""
        return [self._documents(self._rank(probe, limit)) for probe, limit in zip(probes, limits, strict=True)]

    def _rank(self, probe: Probe, limit: int) -> Scored:
        weights: dict[str, float] = {}
        for words, weight in searched(probe, self._by_date):
            for word in words[:MAX_TEXT_WORDS]:
                weights[word] = weights.get(word, 0.0) + weight
        queries: dict[float, list[str]] = {}
        for word, weight in weights.items():
            queries.setdefault(1.0 if self._by_date else weight, []).append(word)
        if len(queries) == 1 and min(queries) > 0:
            ((weight, words),) = queries.items()
            found = self._search(any_of(words), limit)
            return Scored(found.documents, found.scores * weight)
        totals = np.zeros(len(self._positions))
        for weight, words in queries.items():
            found = self._search(any_of(words), len(totals))
            totals[found.documents] += weight * found.scores
        matches = np.flatnonzero(totals > 0)
        return best(matches, totals[matches], limit)

    def _search(self, query: str, limit: int) -> Scored:
        """Rows, counted from 0, in the place of documents."""
        rows = self._database.execute(_BY_DATE if self._by_date else _BY_SCORE, (query, limit)).fetchall()
        numbers, scores = np.array(rows, dtype=np.float64).reshape(-1, 2).T
        return Scored(numbers.astype(np.int64) - 1, scores)

    def _documents(self, found: Scored) -> Scored:
        return Scored(self._positions[found.documents], found.scores)
