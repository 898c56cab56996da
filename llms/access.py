"""Asking a model: prompts with a cached reply cost no call, and every reply is cached as soon as it arrives.

The cache is one SQLite file that any number of processes share. Each reply is written in a transaction of its own, so a
process that is killed loses at most the reply it was writing. The first reply to a prompt stays: a second process that
asked the same at the same time does not change what later runs read. Missing replies are not cached.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter

from ..errors import StorageError
from .base import Backend, Costs, LlmResponse, Prompt, SamplingParams

_REPLY = TypeAdapter(LlmResponse)


class ReplyCache:
    """Replies by key, for one thread at a time; close it."""

    def __init__(self, path: Path) -> None:
        """Raises StorageError if the file cannot be opened or is no cache."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
            self._connection.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL)")
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"the cache of replies {path} cannot be used ({error}). Remove the file, or name another (cache=FILE, "
                "or cache=null for none)."
            ) from error

    @classmethod
    def of(cls, setting: str | None) -> Self | None:
        """The cache of the setting `cache`."""
        if setting == "auto":
            return cls(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "querylect" / "llm.sqlite")
        return None if setting is None else cls(Path(setting).expanduser())

    def get(self, key: str) -> LlmResponse | None:
        """The cached reply; None if there is none."""
        row = self._connection.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else _REPLY.validate_json(row[0])

    def put(self, key: str, reply: LlmResponse) -> None:
        """Store a reply, unless there is one."""
        insert = "INSERT OR IGNORE INTO replies VALUES (?, ?)"
        self._connection.execute(insert, (key, _REPLY.dump_json(reply).decode()))

    def close(self) -> None:
        self._connection.close()


class Llm:
    """One model; close it (`with`)."""

    def __init__(self, backend: Backend, cache: ReplyCache | None = None, json_answers: bool = True) -> None:
        """`json_answers`: structured answers are JSON, whose schema the backend enforces where it can. Otherwise they
        are labelled lines (llms/structured.py)."""
        self.backend, self.cache, self.json_answers = backend, cache, json_answers
        self.costs = Costs()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.cache is not None:
            self.cache.close()

    @property
    def identity(self) -> dict[str, object]:
        """The model as plain data, for results that name it."""
        return dict(self.backend.identity)

    def ask(
        self, prompts: Sequence[Prompt], draw: SamplingParams, missing: Callable[[int, str], None] | None = None
    ) -> list[LlmResponse | None]:
        """The reply to each prompt, in their order; None if it is missing.

        Equal prompts are asked once. `missing` is called with the index of each prompt without a reply and the reason.
        Raises ConfigError if the endpoint refuses everything, EngineUnavailableError if it does not answer at all,
        ModelError for an unusable local model.
        """
        keys = [self.key(prompt, draw) for prompt in prompts]
        pending = dict(zip(keys, prompts, strict=True))
        replies: dict[str, LlmResponse] = {}
        for key in list(pending):
            if self.cache is not None and (reply := self.cache.get(key)) is not None:
                replies[key] = reply
                del pending[key]
        uncached, reasons = list(pending), dict[str, str]()
        self.costs.cached += len(prompts) - len(uncached)

        def deliver(index: int, outcome: LlmResponse | str) -> None:
            if isinstance(outcome, str):
                reasons[uncached[index]] = outcome
                self.costs.missing[outcome] += 1
                return
            replies[uncached[index]] = outcome
            if self.cache is not None:
                self.cache.put(uncached[index], outcome)
            self.costs.calls += 1
            self.costs.prompt_tokens += outcome.prompt_tokens or 0
            self.costs.tokens += outcome.tokens or 0

        if uncached:
            self.backend.generate(list(pending.values()), draw, deliver)
        for index, key in enumerate(keys):
            if missing is not None and key not in replies:
                missing(index, reasons.get(key, "no reply"))
        return [replies.get(key) for key in keys]

    def key(self, prompt: Prompt, draw: SamplingParams) -> str:
        """sha256 over the model and everything in the request: equal keys mean the same call."""
        payload = [self.identity, prompt.messages, prompt.opening, prompt.schema, astuple(draw)]
        text = json.dumps(payload, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
