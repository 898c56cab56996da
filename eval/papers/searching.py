"""The knowledge bases of a paper: opened once, their indexes built where they are missing."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...configs.paper import PaperConfig, PaperEnvironment, PaperSystem
from ...configs.schema import RunConfig
from ...envs.client import SyncEnvironmentClient
from ...envs.connect import open_environment
from ...envs.index import build_index
from ...errors import DataError
from ...logs import progress_bar
from ...rewriters.card import RetrieverCard


@dataclass(frozen=True, slots=True)
class Base:
    """One knowledge base with its retriever."""

    client: SyncEnvironmentClient
    card: RetrieverCard
    facts: Mapping[str, Any]
    """What a result says of it and a record depends on: name, retriever, index."""


def open_bases(paper: PaperConfig, systems: Mapping[str, PaperSystem], stack: ExitStack) -> dict[str, Base]:
    """The environments that any system may search for any task, by name.

    Raises DataError where a corpus is missing (it says where it comes from), and as the opening of an environment.
    """
    wanted: dict[str, None] = {}
    for task, config in paper.tasks.items():
        for system in systems.values():
            if system.tasks is None or task in system.tasks:
                own = system.sources if system.sources is not None else config.sources or paper.environments
                wanted |= dict.fromkeys(own)
    return {name: _open(name, paper.environments[name], stack) for name in wanted}


def _open(name: str, settings: PaperEnvironment, stack: ExitStack) -> Base:
    if settings.client.urls == "local":
        _index(name, settings)
    config = RunConfig(env=settings.env, client=settings.client, name=name)
    client = stack.enter_context(open_environment(config))
    info = client.environment()
    facts = {
        "name": info.name,
        "retriever": str(info.retriever.get("name", "")),
        "documents": info.corpus_size,
        "index": info.index_hash,
    }
    return Base(client, RetrieverCard.from_service(info.retriever), facts)


def _index(name: str, settings: PaperEnvironment) -> None:
    env = settings.env
    if (Path(env.index).expanduser() / "manifest.json").exists():
        return
    if env.dataset.kind == "beir" and not Path(env.dataset.path or "").expanduser().is_dir():
        about = f" {settings.about.rstrip('.')}." if settings.about else ""
        raise DataError(
            f"the corpus of the environment {name!r} is missing: {env.dataset.path} does not exist.{about} Give its "
            f"folder with environments.{name}.env.dataset.path=FOLDER, or a running service with "
            f"environments.{name}.client.urls='[\"http://host:8765\"]'."
        )
    with progress_bar(f"indexing {name}") as progress:
        build_index(env, progress=progress)
