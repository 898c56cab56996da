"""PostgreSQL's full-text search (https://www.postgresql.org/docs/current/textsearch.html): a tsquery combines words.

The index is a table of the database of `env.postgres_url`, made in one transaction and named by its content; the folder
keeps the name. Rows are numbered in the order of `env.order: date`, which equal scores have too. A score is `ts_rank`,
which knows no rare words (no idf), divided by 1 + log(length of the document), so that long documents do not win by
their length. A probe is Σ wᵢ·ts_rank(tᵢ), summed by the database.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...configs.environment import EnvironmentConfig
from ...errors import ConfigError, EnvironmentUnavailableError, IndexFolderError, RequestError, in_one_line
from ...sources import optional_packages
from ...storage import data_sha256, file_sha256
from ..index import RECORDS, Documents, whole, write_json
from ..plan import Probe
from ..presets import RetrieverPreset
from .base import NOTHING, Scored, SearchedIndex
from .language import HITS_BOUND, ORDERS, Found, LanguageFactory, LanguageRetriever, readable, refusal, searched

if TYPE_CHECKING:
    from psycopg import Connection

TABLE = "postgres.json"
_CONNECTION = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_count": 3, "client_encoding": "utf8"}
_REFUSED, _TOO_DEEP = ("22023", "42601", "54000"), "tsquery stack too small"
"""SQLSTATEs of a text that is no tsquery: a distance, the syntax, its size; and the internal error that more than 32
operators in a row are."""
_PREFIX = re.compile(r"'?:[A-Da-d]*\*")
_QUERY = "to_tsquery(%s::regconfig, %s)"
_RANK = f"%s * ts_rank(words, {_QUERY}, 1)"


@contextmanager
def failures(url: str) -> Iterator[None]:
    """EnvironmentUnavailableError with PostgreSQL's message where it fails, RequestError where a text is too long."""
    with optional_packages("postgres"):
        import psycopg
    try:
        yield
    except psycopg.Error as error:
        if (error.sqlstate or "").startswith("54"):
            raise RequestError(f"a text is too long for PostgreSQL ({in_one_line(error)}). Shorten it.") from error
        raise EnvironmentUnavailableError(
            f"PostgreSQL at {url or 'the address of PGHOST'} failed ({in_one_line(error)}). Check that the server of "
            "env.postgres_url runs, and that PGPASSWORD or ~/.pgpass has the password that it wants."
        ) from error


def connect(url: str, read_only: bool = True) -> "Connection":
    """A session in which each statement is its own transaction; one that only reads gives a search up after 30 s."""
    import psycopg

    session = psycopg.connect(url, autocommit=True, prepare_threshold=None, **_CONNECTION)
    if read_only:
        session.execute("SET default_transaction_read_only = on; SET statement_timeout = '30s'")
    return session


def count_rows(session: "Connection", table: str) -> int | None:
    """None without such a table."""
    if session.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,):
        return None
    return int(session.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


class PostgresFactory(LanguageFactory):
    """A table of (ordinal, position in the corpus, words)."""

    rules = """\
boat & ship: both words. boat | ship: at least one of them. boat & !ship: the first without the second.
boat <-> house: the words next to each other, in this order. boat <2> house: with one word between them.
boa:*: words that begin with boa. 'black boat': the words next to each other.
Parentheses group: (boat | ship) & sail. Without them, ! binds closest, then <->, then &, then |.
Two words without an operator between them are a syntax error, as is a colon in a word."""
    orders = ORDERS | {"score": "Matching documents are ranked by how often they have the words."}

    def __init__(
        self, preset: RetrieverPreset, config: EnvironmentConfig, members: Sequence[SearchedIndex] = ()
    ) -> None:
        """Ask the server for its version and languages.

        Raises ConfigError for a language that it lacks, EnvironmentUnavailableError if it does not answer.
        """
        super().__init__(preset, config, members)
        with failures(config.postgres_url), connect(config.postgres_url) as session:
            self._version = session.info.server_version // 10_000
            names = [name for (name,) in session.execute("SELECT DISTINCT cfgname FROM pg_ts_config ORDER BY 1")]
        if config.language not in names:
            raise ConfigError(f"env.language is {config.language!r}; this PostgreSQL has {', '.join(names)}.")

    @property
    def settings(self) -> dict[str, object]:
        """With the language and the version of the server, on which stems depend."""
        return super().settings | {"language": self.config.language, "version": self._version}

    def merge(self, parts: Sequence[Path], folder: Path) -> None:
        """Fill the table, unless it is there with all its rows."""
        documents, url, language = Documents(folder), self.config.postgres_url, self.config.language
        order = self.by_date(parts, documents).tolist()
        table = f"querylect_{data_sha256([file_sha256(folder / RECORDS), order, self.settings])[:32]}"
        contents = (readable(documents.at(position).contents) for position in order)
        rows = zip(range(1, len(order) + 1), order, [language] * len(order), contents, strict=True)
        with failures(url), connect(url, read_only=False) as session, session.transaction():
            if count_rows(session, table) != len(order):
                session.execute(f"DROP TABLE IF EXISTS {table}")
                session.execute(f"CREATE TABLE {table} (ordinal int PRIMARY KEY, position int, words tsvector)")
                insert = f"INSERT INTO {table} VALUES (%s, %s, to_tsvector(%s::regconfig, %s))"
                session.cursor().executemany(insert, rows)
                session.execute(f"CREATE INDEX ON {table} USING gin (words)")
                session.execute(f"ANALYZE {table}")
        write_json(folder / TABLE, {"table": table})

    def load(self, folder: Path, documents: Documents) -> "Postgres":
        """The table. IndexFolderError if it is missing or has another number of rows."""
        with whole(folder):
            table, url = json.loads((folder / TABLE).read_bytes())["table"], self.config.postgres_url
        with failures(url), connect(url) as session:
            rows = count_rows(session, table)
        if rows != len(documents):
            raise IndexFolderError(
                f"table {table} at {url or 'the address of PGHOST'} holds {rows} rows; the index has {len(documents)}. "
                "Fill it again: querylect index build --overwrite."
            )
        return Postgres(self.config, table)


class Postgres(LanguageRetriever):
    """Searches a table, one thread at a time; a session that was lost is opened again for the next search."""

    def __init__(self, config: EnvironmentConfig, table: str) -> None:
        self._url, self._language = config.postgres_url, config.language
        self._table, self._by_date = table, config.order == "date"
        self._connection: Connection | None = None

    @property
    def _session(self) -> "Connection":
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url)
        return self._connection

    def ask(self, queries: Sequence[str], limits: Sequence[int]) -> list[Found]:
        """As LanguageRetriever.ask; the error is PostgreSQL's own."""
        with failures(self._url):
            return [self._ask(query, limit) for query, limit in zip(queries, limits, strict=True)]

    def _ask(self, query: str, limit: int) -> Found:
        import psycopg

        if refused := refusal(_PREFIX.sub("*", query)):
            return Found(error=refused)
        parse = f"SELECT q::text, querytree(q) FROM {_QUERY} AS q"
        try:
            parsed, required = self._session.execute(parse, (self._language, query)).fetchone()
        except psycopg.Error as error:
            if error.sqlstate not in _REFUSED and error.diag.message_primary != _TOO_DEEP:
                raise
            return Found(error=str(error.diag.message_primary))
        if required == "T":
            return Found(error="the query matches documents without any of its words; add & and a word")
        if parsed and (refused := refusal(_PREFIX.sub("*", parsed))):  # 'a boat':* is two prefixes
            return Found(error=refused)
        match = f"SELECT FROM {self._table} WHERE words @@ {_QUERY} LIMIT %s"
        counted = self._session.execute(f"SELECT count(*) FROM ({match}) AS hit", (self._language, query, HITS_BOUND))
        return Found(self._search([(query, 1.0)], limit), counted.fetchone()[0])

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents: those with a word of it, by Σ wᵢ·ts_rank(tᵢ) > 0,
        or by date (`searched`). RequestError for more words than the server takes, some 10,000."""
        with failures(self._url):
            return [self._rank(probe, limit) for probe, limit in zip(probes, limits, strict=True)]

    def _rank(self, probe: Probe, limit: int) -> Scored:
        texts = searched(probe, self._by_date)
        terms = [(" | ".join(f"'{word}'" for word in words), weight) for words, weight in texts]
        return self._search(terms, limit) if terms else NOTHING

    def _search(self, terms: Sequence[tuple[str, float]], limit: int) -> Scored:
        """The documents that match the tsquery of any term, by the weighted sum of their scores > 0, or by date."""
        matches = " OR ".join(f"words @@ {_QUERY}" for _ in terms)
        parameters: list[str | float] = [part for query, _ in terms for part in (self._language, query)]
        score = "1 / ordinal::float8"
        if not self._by_date:
            score = " + ".join(_RANK for _ in terms)
            parameters = [part for query, weight in terms for part in (weight, self._language, query)] + parameters
        hits = f"SELECT position, {score} AS score FROM {self._table} WHERE {matches}"
        best = self._session.execute(f"{hits} ORDER BY score DESC, ordinal LIMIT %s", [*parameters, limit])
        positions, scores = np.array(best.fetchall(), dtype=np.float64).reshape(-1, 2).T
        return Scored(positions[scores > 0].astype(np.int64), scores[scores > 0])
