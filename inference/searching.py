"""The search between the turns of a rewriter: a client passed by the caller, or the environment of its run.

The environment is opened at the first search: a local index in this process, otherwise a connection to the service. An
exported rewriter, or the run of somebody else, has no environment and raises ConfigError.
"""

import threading
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from typing import Protocol

from ..configs.mix import environments
from ..configs.schema import ClientConfig, EnvironmentConfig
from ..envs.plan import SearchPlan
from ..envs.schemas import PlanResult
from ..errors import ConfigError
from ..sources import optional_packages
from .load import Trained

SearchedPlans = Sequence[PlanResult]


class Searcher(Protocol):
    """A synchronous search client of a rewriter, such as `EnvironmentClient`."""

    def search(self, plans: Sequence[SearchPlan]) -> SearchedPlans:
        """One result with texts for each plan."""
        ...


class AsyncSearcher(Protocol):
    """A search client for `asearch` and `arewrite`, such as that of a service."""

    def search(self, plans: Sequence[SearchPlan]) -> Awaitable[SearchedPlans]:
        """One result with texts for each plan."""
        ...


class DefaultSearch:
    """The training environments of a policy, each opened at its first search."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self._opened: dict[str, Searcher] = {}
        self._clients = ExitStack()
        self._lock = threading.Lock()

    def open(self, member: str | None, turn: int) -> Searcher:
        """The searcher of a member. `member` is None for a retriever that the policy was not trained for.

        Raises ConfigError if there is no environment to search, and as the environment.
        """
        if member is None or not self._trained.searchable:
            lacks = "was not trained for this retriever" if member is None else "has no environment"
            raise ConfigError(
                f"{self._trained.name} {lacks}, and turn {turn} is shown what the turn before found. Give what is "
                "searched: client=… in Python, the setting client.urls='[\"http://HOST:PORT\"]' of a running "
                "`querylect serve`, or env.index=FOLDER with env.retriever and env.dataset. Or take the first turn "
                "alone: turn=1 (--turn 1)."
            )
        with self._lock:
            if member not in self._opened:
                configs = environments(self._trained.config)
                settings = configs.get(member) or configs[""]
                self._opened[member] = _open(settings.env, settings.client, self._clients)
            return self._opened[member]

    def close(self) -> None:
        """Close the connections to services."""
        with self._lock:
            self._clients.close()
            self._opened.clear()


def _open(env: EnvironmentConfig, client: ClientConfig, clients: ExitStack) -> Searcher:
    from ..envs.client.client import EnvironmentClient
    from ..envs.client.connect import known_services

    urls = known_services(env, client)
    if urls is not None:
        return clients.enter_context(EnvironmentClient(client, urls=urls))
    with optional_packages("serve"):
        from ..envs.environment import Environment

        return Environment.open(env)
