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
from ..envs.schemas import HitBody
from ..errors import ConfigError, MissingPackageError, UserError
from ..sources import optional_packages
from .load import Trained

Rankings = Sequence[Sequence[HitBody]]


class Searcher(Protocol):
    """A synchronous search client of a rewriter, such as `SyncEnvironmentClient`."""

    def search(self, plans: Sequence[SearchPlan]) -> Rankings:
        """One ranking with texts for each plan."""
        ...


class AsyncSearcher(Protocol):
    """A search client for `asearch` and `arewrite`, such as `EnvironmentClient`."""

    def search(self, plans: Sequence[SearchPlan]) -> Awaitable[Rankings]:
        """One ranking with texts for each plan."""
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

        Raises ConfigError if there is no environment to search, or it cannot be opened, MissingPackageError.
        """
        trained = self._trained
        reason = f"{trained.name} answers in turn {turn}, which is shown what the turn before found"
        if member is None:
            raise ConfigError(
                f"{reason}, and the retriever is not the one of its run: search with it (client=…). {_HELP}"
            )
        if not trained.searchable:
            raise ConfigError(f"{reason}, and {trained.name} brings no retriever to search, as no export does. {_HELP}")
        with self._lock:
            if member not in self._opened:
                configs = environments(trained.config)
                try:
                    settings = configs.get(member) or configs[""]
                    self._opened[member] = _open(settings.env, settings.client, self._clients)
                except MissingPackageError:
                    raise
                except UserError as error:
                    raise ConfigError(f"{reason}, and that cannot be searched: {error} {_HELP}") from error
            return self._opened[member]

    def close(self) -> None:
        """Close the connections to services."""
        with self._lock:
            self._clients.close()
            self._opened.clear()


_HELP = (
    "Give what is searched: the setting client.urls='[\"http://HOST:PORT\"]' of a running `querylect serve`, or "
    "env.index=FOLDER with env.retriever, env.dataset.kind and env.dataset.path; from Python also client=…. Or take "
    "the first turn alone: turn=1 (--turn 1)."
)


def _open(env: EnvironmentConfig, client: ClientConfig, clients: ExitStack) -> Searcher:
    from ..envs.client.client import SyncEnvironmentClient
    from ..envs.client.connect import known_services

    urls = known_services(env, client)
    if urls is not None:
        return clients.enter_context(SyncEnvironmentClient(client, urls=urls))
    with optional_packages("serve"):
        from ..envs.client.in_process import InProcessClient

        return InProcessClient(env)
