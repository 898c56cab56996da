"""From a run's settings to a connected client: the one way that training, evaluation and rewriting reach a service."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..configs.mix import environments, only
from ..configs.schema import RunConfig
from .client import SyncEnvironmentClient
from .handed_over import handed_over
from .local import local_service
from .mixture import MixedClient

AnyClient = SyncEnvironmentClient | MixedClient
"""A client of one environment, or of all that a config mixes."""


@contextmanager
def open_environment(config: RunConfig) -> Iterator[SyncEnvironmentClient]:
    """A client of the configured environment; for `local` the service runs as a child process until the end, unless
    one is handed over.

    Raises ConfigError where the config mixes several.
    """
    config = only(config, None)
    urls = known_urls(config)
    if urls is None:
        with local_service(config.env) as url, SyncEnvironmentClient(config.client, urls=[url]) as client:
            yield client
    else:
        with SyncEnvironmentClient(config.client, urls=urls) as client:
            yield client


def known_urls(config: RunConfig) -> list[str] | None:
    """Where the environment is served already; None where a service of its own is to be started."""
    return handed_over(config.env) if config.client.urls == "local" else config.client.urls


@contextmanager
def open_environments(config: RunConfig) -> Iterator[AnyClient]:
    """A client of the configured environment, or of all that the config mixes; local ones start one after another."""
    with ExitStack() as stack:
        clients = {name: stack.enter_context(open_environment(one)) for name, one in environments(config).items()}
        yield MixedClient(clients) if config.mix is not None else clients[""]
