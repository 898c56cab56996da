"""What a rewriter searches through between its turns: a client that the caller gave, or the environment of its run.

That environment is opened at the first search: the index in this process where it is local, the service else. An
exported rewriter has none, and says so.
"""

import inspect
import threading
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from ..configs.mix import environments
from ..configs.schema import EnvironmentConfig, RunConfig
from ..envs.client import SyncEnvironmentClient
from ..envs.connect import known_urls
from ..envs.environment import Environment
from ..envs.plan import SearchPlan
from ..envs.wire import HitBody
from ..errors import ConfigError, UserError
from .trained import Trained

Rankings = Sequence[Sequence[HitBody]]


class Searcher(Protocol):
    """What searches for a rewriter: `SyncEnvironmentClient` is one."""

    def search(self, plans: Sequence[SearchPlan]) -> Rankings:
        """One ranking with texts for each plan."""
        ...


class AsyncSearcher(Protocol):
    """The same for `asearch` and `arewrite`: `EnvironmentClient` is one."""

    def search(self, plans: Sequence[SearchPlan]) -> Awaitable[Rankings]:
        """One ranking with texts for each plan."""
        ...


class IndexSearcher:
    """Searches an index in this process; may be asked from several threads."""

    def __init__(self, config: EnvironmentConfig) -> None:
        """Open it. Raises as `Environment.open`."""
        self._environment = Environment.open(config)
        self._lock = threading.Lock()

    def search(self, plans: Sequence[SearchPlan]) -> list[list[HitBody]]:
        """One ranking with texts for each plan. Raises as `Environment.search`."""
        with self._lock:
            return [[self._hit(hit.id, hit.score) for hit in found] for found in self._environment.search(plans)]

    def _hit(self, name: str, score: float) -> HitBody:
        document = self._environment.document(name)
        return HitBody(id=name, score=score, title=document.title, text=document.text)


class OwnSearch:
    """The environments that a policy was trained in, each opened when it is first searched."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self._opened: dict[str, Searcher] = {}
        self._lock = threading.Lock()

    def of(self, member: str | None, turn: int) -> Searcher:
        """What searches for a member; None is a retriever that the policy was not trained for.

        Raises ConfigError where there is nothing to search through, or where it cannot be opened.
        """
        trained = self._trained
        why = f"{trained.name} answers in turn {turn}, which is shown what the turn before found"
        if member is None:
            raise ConfigError(f"{why}, and the retriever is not the one of its run: search with it (client=…). {_HOW}")
        if not trained.searchable:
            raise ConfigError(f"{why}, and an export comes without a retriever. {_HOW}")
        with self._lock:
            if member not in self._opened:
                configs = environments(trained.config)
                try:
                    self._opened[member] = _open(configs.get(member) or configs[""])
                except UserError as error:
                    raise ConfigError(f"{why}, and that cannot be searched: {error} {_HOW}") from error
            return self._opened[member]

    def close(self) -> None:
        """Close the connections to services."""
        with self._lock:
            for searcher in self._opened.values():
                if isinstance(searcher, SyncEnvironmentClient):
                    searcher.close()
            self._opened.clear()


_HOW = (
    "Give what is searched: the setting client.urls='[\"http://HOST:PORT\"]' of a running `querylect serve`, or "
    "env.index=FOLDER with env.retriever, env.dataset.kind and env.dataset.path; from Python also client=…. Or take "
    "the first turn alone: turn=1 (--turn 1)."
)


def _open(config: RunConfig) -> Searcher:
    urls = known_urls(config)
    return IndexSearcher(config.env) if urls is None else SyncEnvironmentClient(config.client, urls=urls)


async def awaited(found: Any) -> Any:
    """What a search gave, whether it is waited for or not."""
    return await found if inspect.isawaitable(found) else found
