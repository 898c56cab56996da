"""tantivy (https://github.com/quickwit-oss/tantivy) in this process: words that a query language combines, ranked by
BM25 or listed by date.

An index folder has the order of the rows; tantivy's own index, whose files have random names, is made in memory when it
is opened, 100,000 passages in ten seconds. It is one segment by one writer, so that its document numbers are the rows,
in the order of `env.order: date`; equal scores have it too.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, IndexFolderError
from ...sources import optional_packages
from ..index import Documents, mapped, whole
from ..plan import Probe
from .base import NOTHING, Scored, refuse_negative_weights
from .language import HITS_BOUND, Found, LanguageFactory, LanguageRetriever, any_of, readable, refusal, searched

if TYPE_CHECKING:
    import tantivy

ROWS = "tantivy.rows.npy"
_FIELD, _MAX_LETTERS = "text", 40
_MEMORY = 4_000_000_000
"""Bytes that one segment may have while it is written, tantivy's maximum; they are taken as they are needed."""


class TantivyFactory(LanguageFactory):
    """Keeps the positions of the documents in the order of the rows."""

    rules = """\
A document matches if it holds at least one word of the query. a AND b: both. a OR b: one of them, in capitals.
+a: a must be there. a -b, a NOT b: the first without the second (never AND NOT). a^2: counts double.
"a b": the words next to each other; "a b"~3: near each other; "a b"*: the last one may go on.
Parentheses group: (a OR b) AND c. Without them, AND binds closest.
Colons, brackets, slashes and single apostrophes are errors; words joined by another sign are read as "a b"."""

    @property
    def settings(self) -> dict[str, object]:
        """With the language of the stemmer."""
        return super().settings | {"stemmer": self.config.language}

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Write the order. Raises ConfigError for a language without a stemmer."""
        _analyzer(self.config.language)
        np.save(folder / ROWS, self.by_date(parts, Documents(folder)))

    def load(self, folder: Path, documents: Documents) -> "Tantivy":
        """Index the documents. Raises IndexFolderError."""
        with whole(folder):
            return Tantivy(documents, mapped(folder / ROWS), self.config.language, self.config.order)


class Tantivy(LanguageRetriever):
    """Searches an index in memory."""

    def __init__(self, documents: Documents, positions: npt.NDArray[np.int64], language: str, order: str) -> None:
        analyzer = _analyzer(language)
        import tantivy

        schema = tantivy.SchemaBuilder().add_text_field(_FIELD, tokenizer_name=_FIELD).build()
        self._index, self._query = tantivy.Index(schema), tantivy.Query
        self._index.register_tokenizer(_FIELD, analyzer)
        writer = self._index.writer(_MEMORY, num_threads=1)
        for position in positions.tolist():
            writer.add_document(tantivy.Document(**{_FIELD: [readable(documents.at(position).contents)]}))
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()
        self._searcher = self._index.searcher()
        if self._searcher.num_segments > 1:
            raise IndexFolderError(f"{len(documents)} documents are too many for one segment of tantivy. Use fts5.")
        self._positions, self._by_date = positions, order == "date"

    def ask(self, queries: Sequence[str], limits: Sequence[int]) -> list[Found]:
        """As LanguageRetriever.ask; the error is tantivy's own."""
        return [self._ask(query, limit) for query, limit in zip(queries, limits, strict=True)]

    def _ask(self, query: str, limit: int) -> Found:
        if refused := refusal(query):
            return Found(error=refused)
        if ":" in query:
            return Found(error="a colon would name a field, and there is only one; leave it out")
        try:
            return self._search(self._index.parse_query(query, [_FIELD]), limit)
        except ValueError as error:
            return Found(error=str(error))

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents: those with a word of it, by Σ wᵢ·BM25(tᵢ), wᵢ > 0, or
        by date (`searched`). RequestError for a negative weight."""
        refuse_negative_weights(probes, "tantivy")
        return [self._rank(probe, limit) for probe, limit in zip(probes, limits, strict=True)]

    def _rank(self, probe: Probe, limit: int) -> Scored:
        queries = [
            self._query.boost_query(self._index.parse_query(any_of(words), [_FIELD]), weight)
            for words, weight in searched(probe, self._by_date)
        ]
        return self._search(queries[0].or_should_match(*queries[1:]), limit).ranking if queries else NOTHING

    def _search(self, query: "tantivy.Query", limit: int) -> Found:
        if self._by_date:
            query = self._query.const_score_query(query, 1.0)  # equal scores: the first rows
        found = self._searcher.search(query, limit)
        rows = np.array([address.doc for _, address in found.hits], dtype=np.int64)
        scores = -1.0 - rows if self._by_date else np.array([score for score, _ in found.hits], dtype=np.float64)
        return Found(Scored(self._positions[rows], np.nan_to_num(scores)), min(found.count, HITS_BOUND))


def _analyzer(language: str) -> "tantivy.TextAnalyzer":
    """Raises ConfigError for a language without a stemmer, and as `optional_packages`."""
    with optional_packages("tantivy"):
        import tantivy
    try:
        stemmer = tantivy.Filter.stemmer(language)
        short = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.remove_long(_MAX_LETTERS))
        return short.filter(tantivy.Filter.lowercase()).filter(stemmer).build()
    except ValueError as error:
        raise ConfigError(f"env.language is {language!r}, and tantivy stems no such language. Use fts5.") from error
