"""Replies that were given before, in one SQLite file that any number of processes share.

A reply is written in a transaction of its own, so a process that is killed loses at most the reply it was writing and
never damages the file. The first reply to a prompt stays: a second process that asked the same at the same time does
not change what later runs read. Missing replies are not kept.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import StorageError
from .base import Reply

log = logging.getLogger(__name__)

_BUSY_SECONDS = 60.0
_AT_ONCE = 500


def cache_file(setting: str | None) -> Path | None:
    """The file that the setting `cache` means."""
    if setting is None:
        return None
    if setting == "auto":
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "querylect" / "llm.sqlite"
    return Path(setting).expanduser()


class ReplyCache:
    """Replies by key; close it."""

    def __init__(self, path: Path) -> None:
        """Raises StorageError where the file cannot be opened or is no cache."""
        self.path = path
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
            self._open.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL)")

    def get(self, keys: Sequence[str]) -> dict[str, Reply]:
        """The known replies among `keys`. A row that cannot be read is passed over: it is asked for anew."""
        found: dict[str, Reply] = {}
        for start in range(0, len(keys), _AT_ONCE):
            part = keys[start : start + _AT_ONCE]
            places = ",".join("?" * len(part))
            with self._told():
                rows = self._open.execute(f"SELECT key, reply FROM replies WHERE key IN ({places})", part).fetchall()
            for key, line in rows:
                try:
                    found[key] = Reply.from_json(line)
                except (ValueError, KeyError, TypeError) as error:
                    log.warning("%s: the reply %s cannot be read (%s); it is asked for again", self.path, key, error)
        return found

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply, unless there is one."""
        with self._told():
            self._open.execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", (key, reply.to_json()))

    def close(self) -> None:
        """Close the file."""
        self._open.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"the cache of replies {self.path} cannot be used ({error}). Free some space, remove the file, or name "
                "another (cache=FILE, or cache=null for none)."
            ) from error
