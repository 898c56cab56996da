"""From a run's settings to a connected client: the one way that training, evaluation and rewriting reach a service."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..configs.schema import RunConfig
from .client import SyncEnvironmentClient
from .local import local_service


@contextmanager
def open_environment(config: RunConfig) -> Iterator[SyncEnvironmentClient]:
    """A client of the configured environment; for `local` the service runs as a child process until the end."""
    if config.client.urls == "local":
        with local_service(config.env) as url, SyncEnvironmentClient(config.client, urls=[url]) as client:
            yield client
    else:
        with SyncEnvironmentClient(config.client) as client:
            yield client
