"""Opens the environments that a run's settings describe: running services, a child process, or an index in this
process; several of them as one.

Services that were started for a run from outside, such as by a cluster job, write their URLs into files of the folder
that QUERYLECT_SERVICES names (`querylect serve --tell FOLDER/NAME.json`), so that no short-lived address ends up in the
settings of a run.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Union

from ...configs.schema import ClientConfig, EnvironmentConfig, ServedConfig
from ...data.types import Question, joined, split_id
from ...errors import ConfigError
from ...storage import data_sha256, json_object
from ..plan import SearchPlan
from ..presets import PYTHON, required_indexes
from ..schemas import EnvironmentInfo, PlanResult, Step, StepResult
from .base import EnvironmentApi, ServiceAddress
from .child_process import PRIVATE, local_service

if TYPE_CHECKING:
    from ...data.types import Dataset
    from .client import EnvironmentClient

SERVICES = "QUERYLECT_SERVICES"


class MixedClient:
    """Asks the environment that a question's id names (data/types.py); the caller closes the clients.

    Every environment has its own client, replicas and deadline. A search that one of them fails to answer is a failed
    search; the results of the others are returned.
    """

    def __init__(self, clients: "Mapping[str, EnvironmentClient]") -> None:
        self.clients = dict(clients)

    @property
    def last_failure(self) -> str | None:
        """The last attempt that failed, for every environment that had one."""
        failures = [f"{name}: {client.last_failure}" for name, client in self.clients.items() if client.last_failure]
        return "; ".join(failures) or None

    def give_up_soon(self) -> None:
        """As `EnvironmentClient.give_up_soon`, for all of them."""
        for client in self.clients.values():
            client.give_up_soon()

    def infos(self) -> dict[str, EnvironmentInfo]:
        """What each of them serves."""
        return {name: client.info() for name, client in self.clients.items()}

    def info(self) -> EnvironmentInfo:
        """All environments as one: sizes summed up, retrievers by name, hashes joined."""
        infos = self.infos()

        def combined(field: str) -> str:
            return ", ".join(f"{name}: {getattr(info, field)}" for name, info in infos.items())

        splits = sorted({split for info in infos.values() for split in info.splits})
        return EnvironmentInfo(
            name=" + ".join(infos),
            retriever={name: info.retriever for name, info in infos.items()},
            corpus_size=sum(info.corpus_size for info in infos.values()),
            corpus_hash=combined("corpus_hash"),
            index_hash=combined("index_hash"),
            settings_hash=combined("settings_hash"),
            splits={split: sum(info.splits.get(split, 0) for info in infos.values()) for split in splits},
            judged=all(info.judged for info in infos.values()),
        )

    def questions(self, split: str) -> list[Question]:
        """The questions of that split in all environments, one after the other, under mixed ids."""
        return [question for name, client in self.clients.items() for question in joined(name, client.questions(split))]

    def search(self, plans: Sequence[SearchPlan], *, with_text: bool | int = True) -> list[PlanResult]:
        """Refused: only a question says which environment is meant."""
        raise ConfigError(f"a plan without a question names none of {', '.join(self.clients)}. Search one of them.")

    def step(
        self, steps: Sequence[Step], *, with_text: bool | int = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Rank and score every step where it belongs, all environments side by side; results in the order of `steps`.

        Where one of them raises, the searches of the others are cancelled.
        """
        parts: dict[str, dict[int, Step]] = {}
        for index, step in enumerate(steps):
            name, question_id = split_id(step.question_id)
            parts.setdefault(name, {})[index] = step.model_copy(update={"question_id": question_id})
        futures = {
            name: self.clients[name].start_step(list(part.values()), with_text=with_text, metrics=metrics)
            for name, part in parts.items()
        }
        results: list[StepResult | None] = [None] * len(steps)
        try:
            for name, part in parts.items():
                for index, result in zip(part, futures[name].result(), strict=True):
                    if result is not None:
                        mixed_id = f"{name}/{result.question_id}"
                        results[index] = result.model_copy(update={"question_id": mixed_id})
        finally:
            for future in futures.values():
                future.cancel()
        return results


AnyClient = Union["EnvironmentClient", MixedClient]
"""A client of one environment, or of all that a config mixes."""


@contextmanager
def open_environment(env: EnvironmentConfig, settings: ClientConfig) -> "Iterator[EnvironmentClient]":
    """A client of one environment. For `local`, the service runs as a child process until the end of the block, unless
    a running one is known (`service_urls`)."""
    from .client import EnvironmentClient  # httpx, which a search in this process does not need

    with ExitStack() as stack:
        urls = known_services(env, settings)
        if urls is None:
            urls = [stack.enter_context(local_service(env))]
        yield stack.enter_context(EnvironmentClient(settings, urls))


@contextmanager
def open_unserved(
    env: EnvironmentConfig, settings: ClientConfig, dataset: "Dataset | None" = None
) -> Iterator[EnvironmentApi]:
    """As `open_environment`, but an environment that only reads an index of this machine is opened in this process, by
    `Environment.open` with `dataset`: no service is started for it.

    For callers without a model in memory, since the retriever's threads and memory are in their process. User code, and
    retrievers with another service (OpenSearch, Milvus, PostgreSQL), run in a separate process, with the client's
    retries and deadline.
    """
    if known_services(env, settings) is None and only_reads_index(env):
        from ..environment import Environment

        yield Environment.open(env, dataset)
    else:
        with open_environment(env, settings) as client:
            yield client


def only_reads_index(env: EnvironmentConfig) -> bool:
    """Whether a retriever, and every member of it, is built in and searches files of this machine."""
    return not any(
        required.remote
        or required.engine == "milvus"
        or required.retriever == "postgres"
        or required.retriever.startswith(PYTHON)
        for required in [env, *required_indexes(env)]
    )


OpenClient = Callable[[EnvironmentConfig, ClientConfig], AbstractContextManager["EnvironmentClient"]]
"""Opens a client of one environment, as `open_environment`."""


@contextmanager
def open_environments(
    members: Mapping[str, ServedConfig], open_member: OpenClient = open_environment
) -> Iterator[AnyClient]:
    """A client of the only environment, which is named "", or of a mix; local ones start one after another."""
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(open_member(member.env, member.client)) for name, member in members.items()
        }
        yield clients[""] if "" in clients else MixedClient(clients)


def known_services(env: EnvironmentConfig, client: ClientConfig) -> Sequence[str | ServiceAddress] | None:
    """The running services; None where the run has to start its own."""
    return service_urls(env) if client.urls == "local" else client.urls


def service_urls(config: EnvironmentConfig) -> list[str] | None:
    """This environment's services in the folder $QUERYLECT_SERVICES; None where it is not set.

    Raises ConfigError where it is set and the folder has no service of this environment.
    """
    folder = os.environ.get(SERVICES)
    if not folder:
        return None
    services = [json_object(path) or {} for path in sorted(Path(folder).glob("*.json"))]
    urls = [service["url"] for service in services if service.get("environment") == _identity(config)]
    if not urls:
        raise ConfigError(
            f"{SERVICES} is {folder!r}, and none of its {len(services)} services has the settings of this environment. "
            f"Start one with `querylect serve CONFIG --tell {folder}/NAME.json`, or unset {SERVICES}."
        )
    return urls


def write_url(path: Path, url: str, config: EnvironmentConfig) -> None:
    """Write where the service of `config` answers, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"url": url, "environment": _identity(config)}))
    temporary.rename(path)


def _identity(config: EnvironmentConfig) -> str:
    """A digest of the settings of an environment, without those of its service."""
    settings = config.model_dump(mode="json", exclude=set(PRIVATE))
    return data_sha256({**settings, "index": str(config.index_folder.resolve())})
