"""Checks of a paper's systems before any index is built, model loaded or prompt sent."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ...configs.paper import PaperConfig, PaperSystem
from ...errors import ConfigError
from ...methods.methods import KnownMethod, method_settings, named_sources
from ...sources import resolve_model


def check_systems(paper: PaperConfig, systems: Mapping[str, PaperSystem], methods: Mapping[str, KnownMethod]) -> None:
    """Raises ConfigError for a method that is unknown, settings that it does not take, a source that it names and may
    not search, and a cross-encoder that it needs and the paper does not name; ModelError where that one does not exist.
    """
    scoring = ""
    for name, system in systems.items():
        with naming(name):
            settings = method_settings(system.method, system.settings, methods)
            scoring = scoring or (name if methods[system.method].scores(settings) else "")
    for task, name, system in rows_of(paper, systems):
        with naming(name):
            method = methods[system.method]
            settings = method_settings(system.method, system.settings, methods)
            sources = sources_of(paper, task, system)
            unknown = [source for source in named_sources(settings) if source and source not in sources]
            if unknown:
                raise ConfigError(
                    f"the method {system.method!r} names the source {unknown[0]!r}; for the task {task!r} it may "
                    f"search {', '.join(map(repr, sources)) or 'nothing'}. Name one of them, or add it to "
                    f"systems.{name}.sources."
                )
            if method.searches and not sources:
                raise ConfigError(
                    f"the method {system.method!r} searches, and for the task {task!r} there is nothing to search. "
                    f"Name an environment in systems.{name}.sources."
                )
    if scoring and paper.reranker is None:
        raise ConfigError(
            f"the system {scoring!r} puts documents in order with a cross-encoder, and the paper names none. Give "
            "reranker.model=MODEL, or choose other systems with --system."
        )
    if scoring and paper.reranker is not None:
        resolve_model(paper.reranker.model)


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


@contextmanager
def naming(system: str) -> Iterator[None]:
    """Prefix a ConfigError with the name of the system."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"the system {system!r}: {error}") from error
