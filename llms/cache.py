"""A cache of replies in one SQLite file that any number of processes share.

Each reply is written in a transaction of its own, so a process that is killed loses at most the reply it was writing.
The first reply to a prompt stays: a second process that asked the same at the same time does not change what later runs
read. Missing replies are not cached.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter

from ..errors import StorageError
from .base import LlmResponse

log = logging.getLogger(__name__)

_KEYS_PER_QUERY = 500
_REPLY = TypeAdapter(LlmResponse)


def cache_file(setting: str | None) -> Path | None:
    """The file of the setting `cache`; None for no cache."""
    if setting == "auto":
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "querylect" / "llm.sqlite"
    return None if setting is None else Path(setting).expanduser()


class ReplyCache:
    """Replies by key, for one thread at a time; close it."""

    def __init__(self, path: Path) -> None:
        """Raises StorageError if the file cannot be opened or is no cache."""
        self.path = path
        with self._storage_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
            self._connection.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL)")

    def get(self, keys: Sequence[str]) -> dict[str, LlmResponse]:
        """The cached replies among `keys`. A row that cannot be read is skipped: its prompt is asked again."""
        replies: dict[str, LlmResponse] = {}
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            chunk = keys[start : start + _KEYS_PER_QUERY]
            select = f"SELECT key, reply FROM replies WHERE key IN ({','.join('?' * len(chunk))})"
            with self._storage_errors():
                rows = self._connection.execute(select, chunk).fetchall()
            for key, line in rows:
                try:
                    replies[key] = _REPLY.validate_json(line)
                except ValueError as error:
                    log.warning("%s: the reply %s cannot be read (%s); it is asked for again", self.path, key, error)
        return replies

    def put(self, key: str, reply: LlmResponse) -> None:
        """Store a reply, unless there is one."""
        with self._storage_errors():
            self._connection.execute(
                "INSERT OR IGNORE INTO replies VALUES (?, ?)", (key, _REPLY.dump_json(reply).decode())
            )

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"the cache of replies {self.path} cannot be used ({error}). Free some space, remove the file, or name "
                "another (cache=FILE, or cache=null for none)."
            ) from error
