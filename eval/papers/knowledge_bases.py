"""What the systems of a paper may search: checked before anything is asked, then opened, a missing index built."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...configs.paper import PaperConfig, PaperEnvironment, PaperSystem
from ...data.packaged import PACKAGED
from ...envs.build import build_index
from ...envs.client.client import EnvironmentClient
from ...envs.client.connect import open_environment
from ...envs.retrievers.question_index import open_question_index
from ...errors import ConfigError, DataError
from ...logs import progress_bar
from ...methods.methods import METHODS, method_settings, named_sources
from ...rewriters.retriever_info import RetrieverInfo


def rows_of(paper: PaperConfig, systems: Mapping[str, PaperSystem]) -> Iterator[tuple[str, str, PaperSystem]]:
    """The task, the name and the system of every row."""
    for task in paper.tasks:
        for name, system in systems.items():
            if system.tasks is None or task in system.tasks:
                yield task, name, system


def sources_of(paper: PaperConfig, task: str, system: PaperSystem) -> list[str]:
    """The environments that a system may search for a task, the first by default."""
    if system.sources is not None:
        return list(system.sources)
    return list(paper.tasks[task].sources or paper.environments)


def environment_of(paper: PaperConfig, task: str, source: str) -> str:
    """The environment that a source stands for in a task, which may have its own in another language."""
    return paper.tasks[task].environments.get(source, source)


@contextmanager
def naming(system: str) -> Iterator[None]:
    """Prefix a ConfigError with the name of the system."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"the system {system!r}: {error}") from error


def check_systems(paper: PaperConfig, systems: Mapping[str, PaperSystem]) -> None:
    """Raises ConfigError, before an index is built, for a method that is unknown, settings that it does not take, a
    source that it names and may not search, and a cross-encoder that it needs and the paper does not name."""
    for task, name, system in rows_of(paper, systems):
        with naming(name):
            settings, sources = method_settings(system.method, system.settings), sources_of(paper, task, system)
            unknown = [source for source in named_sources(settings) if source and source not in sources]
            if unknown or (METHODS[system.method].searches and not sources):
                raise ConfigError(
                    f"the method {system.method!r} searches {', '.join(map(repr, unknown)) or 'something'}; for the "
                    f"task {task!r} it may search {', '.join(map(repr, sources)) or 'nothing'}. Name one of them, or "
                    f"add it to systems.{name}.sources."
                )
            if METHODS[system.method].scores and paper.reranker is None:
                raise ConfigError(
                    "it puts documents in order with a cross-encoder, and the paper names none. Give "
                    "reranker.model=MODEL, or choose other systems with --system."
                )


@dataclass(frozen=True, slots=True)
class KnowledgeBase:
    """One knowledge base with its retriever."""

    client: EnvironmentClient
    retriever: RetrieverInfo
    facts: Mapping[str, object]
    """What a result says of it and a record depends on: name, retriever, index, settings of the search."""


def open_bases(paper: PaperConfig, systems: Mapping[str, PaperSystem], stack: ExitStack) -> dict[str, KnowledgeBase]:
    """The environments that any system may search for any task, by name.

    Raises DataError where a corpus is missing (it says where it comes from), IndexFolderError where a question index
    is, both before the first index is built, and as the opening of an environment.
    """
    rows = rows_of(paper, systems)
    names = list(
        dict.fromkeys(
            environment_of(paper, task, source)
            for task, _, system in rows
            for source in sources_of(paper, task, system)
        )
    )
    for name in names:
        if _lacks_index(paper.environments[name]):
            _check_data(name, paper.environments[name])
    return {name: _open(name, paper.environments[name], stack) for name in names}


def _open(name: str, settings: PaperEnvironment, stack: ExitStack) -> KnowledgeBase:
    if _lacks_index(settings):
        with progress_bar(f"indexing {name}") as progress:
            build_index(settings.env, progress=progress)
    client = stack.enter_context(open_environment(settings.env, settings.client))
    info = client.info()
    facts = {
        "name": info.name,
        "retriever": str(info.retriever.get("name", "")),
        "documents": info.corpus_size,
        "index": info.index_hash,
        "settings": info.settings_hash,
    }
    return KnowledgeBase(client, RetrieverInfo.from_service(info.retriever), facts)


def _lacks_index(settings: PaperEnvironment) -> bool:
    return settings.client.urls == "local" and not settings.env.has_index


def _check_data(name: str, settings: PaperEnvironment) -> None:
    """Raise for a missing corpus or question index."""
    env = settings.env
    if env.dataset.path not in PACKAGED and not Path(env.dataset.path).expanduser().is_dir():
        origin = f" {settings.about.rstrip('.')}." if settings.about else ""
        raise DataError(
            f"the corpus of the environment {name!r} is missing: {env.dataset.path} does not exist.{origin} Give its "
            f"folder with environments.{name}.env.dataset.path=FOLDER, or a running service with "
            f"environments.{name}.client.urls='[\"http://host:8765\"]'."
        )
    if env.question_index is not None:
        open_question_index(env.question_index.folder)
