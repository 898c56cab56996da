"""Opens the environment that a run's settings describe, for training, evaluation and rewriting."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from ...configs.schema import ClientConfig, EnvironmentConfig, RunConfig, environments
from .base import EnvironmentApi, ServiceAddress
from .child_process import local_service
from .client import EnvironmentClient
from .multi import MixedClient
from .services import service_urls

if TYPE_CHECKING:
    from ...data.corpus import LoadedQuestions

AnyClient = EnvironmentClient | MixedClient
"""A client of one environment, or of all that a config mixes."""


@contextmanager
def open_environment(env: EnvironmentConfig, settings: ClientConfig) -> Iterator[EnvironmentClient]:
    """A client of one environment. For `local`, the service runs as a child process until the end of the block, unless
    a running one is known (`service_urls`)."""
    with ExitStack() as stack:
        urls = known_services(env, settings)
        if urls is None:
            urls = [stack.enter_context(local_service(env))]
        yield stack.enter_context(EnvironmentClient(settings, urls))


@contextmanager
def open_unserved(
    env: EnvironmentConfig, settings: ClientConfig, loaded: "LoadedQuestions | None" = None
) -> Iterator[EnvironmentApi]:
    """As `open_environment`, but an environment that only reads an index of this machine is opened in this process, by
    `Environment.open` with `loaded`: no service is started for it.

    For callers without a model in memory, since the retriever's threads and memory are in their process. User code, and
    retrievers with another service (OpenSearch, Milvus), run in a separate process, with the client's retries and
    deadline.
    """
    if known_services(env, settings) is None and only_reads_index(env):
        from ..environment import Environment

        yield Environment.open(env, loaded)
    else:
        with open_environment(env, settings) as client:
            yield client


def only_reads_index(env: EnvironmentConfig) -> bool:
    """Whether a retriever, and every member of it, is built in and searches files of this machine."""
    from ..index_names import required_indexes
    from ..presets import PYTHON

    return not any(
        required.remote or required.engine == "milvus" or required.retriever.startswith(PYTHON)
        for required in [env, *required_indexes(env)]
    )


def known_services(env: EnvironmentConfig, client: ClientConfig) -> Sequence[str | ServiceAddress] | None:
    """The running services; None where the run has to start its own."""
    return service_urls(env) if client.urls == "local" else client.urls


OpenClient = Callable[[EnvironmentConfig, ClientConfig], AbstractContextManager[EnvironmentClient]]
"""Opens a client of one environment, as `open_environment`."""


@contextmanager
def open_environments(config: RunConfig, open_member: OpenClient = open_environment) -> Iterator[AnyClient]:
    """A client of the configured environment, or of all that the config mixes; local ones start one after another."""
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(open_member(member.env, member.client))
            for name, member in environments(config).items()
        }
        yield MixedClient(clients) if config.mix is not None else clients[""]
