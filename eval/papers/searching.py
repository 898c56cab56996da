"""The knowledge bases of a paper: opened once, their indexes built where they are missing."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...configs.paper import PaperConfig, PaperEnvironment, PaperSystem
from ...configs.schema import EnvironmentConfig, RunConfig
from ...envs.client.client import SyncEnvironmentClient
from ...envs.client.connect import open_environment
from ...envs.index.build import build_index
from ...envs.index.manifest import MANIFEST
from ...envs.retrievers.question_index import open_question_index
from ...errors import DataError
from ...logs import progress_bar
from ...rewriters.card import RetrieverCard
from .checks import rows_of, sources_of


@dataclass(frozen=True, slots=True)
class KnowledgeBase:
    """One knowledge base with its retriever."""

    client: SyncEnvironmentClient
    card: RetrieverCard
    facts: Mapping[str, Any]
    """What a result says of it and a record depends on: name, retriever, index, settings of the search."""


def open_bases(paper: PaperConfig, systems: Mapping[str, PaperSystem], stack: ExitStack) -> dict[str, KnowledgeBase]:
    """The environments that any system may search for any task, by name.

    Raises DataError where a corpus is missing (it says where it comes from), IndexFolderError where a question index
    is, both before the first index is built, and as the opening of an environment.
    """
    names: dict[str, None] = {}
    for task, _, system in rows_of(paper, systems):
        names |= dict.fromkeys(sources_of(paper, task, system))
    for name in names:
        _check(name, paper.environments[name])
    return {name: _open(name, paper.environments[name], stack) for name in names}


def _open(name: str, settings: PaperEnvironment, stack: ExitStack) -> KnowledgeBase:
    if settings.client.urls == "local":
        _index(name, settings.env)
    config = RunConfig(env=settings.env, client=settings.client, name=name)
    client = stack.enter_context(open_environment(config))
    info = client.environment()
    facts = {
        "name": info.name,
        "retriever": str(info.retriever.get("name", "")),
        "documents": info.corpus_size,
        "index": info.index_hash,
        "settings": info.settings_hash,
    }
    return KnowledgeBase(client, RetrieverCard.from_service(info.retriever), facts)


def _check(name: str, settings: PaperEnvironment) -> None:
    """Raise for a missing corpus or question index before the first index is built, which may take hours."""
    env = settings.env
    if settings.client.urls != "local" or _indexed(env):
        return
    if env.dataset.kind == "beir" and not Path(env.dataset.path or "").expanduser().is_dir():
        origin = f" {settings.about.rstrip('.')}." if settings.about else ""
        raise DataError(
            f"the corpus of the environment {name!r} is missing: {env.dataset.path} does not exist.{origin} Give its "
            f"folder with environments.{name}.env.dataset.path=FOLDER, or a running service with "
            f"environments.{name}.client.urls='[\"http://host:8765\"]'."
        )
    if env.question_index is not None:
        open_question_index(env.question_index.folder)


def _indexed(env: EnvironmentConfig) -> bool:
    return (Path(env.index).expanduser() / MANIFEST).exists()


def _index(name: str, env: EnvironmentConfig) -> None:
    if _indexed(env):
        return
    with progress_bar(f"indexing {name}") as progress:
        build_index(env, progress=progress)
