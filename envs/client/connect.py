"""From a run's settings to a connected client: the one way that training, evaluation and rewriting reach a service."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ...configs.mix import environments, only
from ...configs.schema import RunConfig
from .address import ServiceAddress
from .child_process import local_service
from .client import SyncEnvironmentClient
from .discovery import discover_services
from .multi import MixedClient

AnyClient = SyncEnvironmentClient | MixedClient
"""A client of one environment, or of all that a config mixes."""


@contextmanager
def open_environment(config: RunConfig) -> Iterator[SyncEnvironmentClient]:
    """A client of the configured environment; for `local` the service runs as a child process until the end, unless
    one is handed over.

    Raises ConfigError where the config mixes several.
    """
    config = only(config, None)
    urls = known_services(config)
    if urls is None:
        with local_service(config.env) as service, SyncEnvironmentClient(config.client, urls=[service]) as client:
            yield client
    else:
        with SyncEnvironmentClient(config.client, urls=urls) as client:
            yield client


def known_services(config: RunConfig) -> Sequence[str | ServiceAddress] | None:
    """The running services; None where the run has to start its own."""
    return discover_services(config.env) if config.client.urls == "local" else config.client.urls


@contextmanager
def open_environments(config: RunConfig) -> Iterator[AnyClient]:
    """A client of the configured environment, or of all that the config mixes; local ones start one after another."""
    with ExitStack() as stack:
        clients = {name: stack.enter_context(open_environment(member)) for name, member in environments(config).items()}
        yield MixedClient(clients) if config.mix is not None else clients[""]
