"""What a paper needs and can be known to lack before an index is built, a model loaded or anything asked."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ...configs.paper import PaperConfig, PaperSystem
from ...errors import ConfigError
from ...rewriters.methods import KnownMethod, method_settings, named_sources
from ...sources import resolve_model


def check_systems(paper: PaperConfig, systems: Mapping[str, PaperSystem], methods: Mapping[str, KnownMethod]) -> None:
    """Raises ConfigError for a method that is unknown, settings that it does not take, a source that it names and may
    not search, and a cross-encoder that it needs and the paper does not name; ModelError where that one does not exist.
    """
    scoring = ""
    for name, system in systems.items():
        with naming(name):
            own = method_settings(system.method, system.settings, methods)
            scoring = scoring or (name if methods[system.method].scores(own) else "")
    for task, name, system in rows_of(paper, systems):
        with naming(name):
            known = methods[system.method]
            settings = method_settings(system.method, system.settings, methods)
            given = sources_of(paper, task, system)
            unknown = [source for source in named_sources(settings) if source and source not in given]
            if unknown:
                raise ConfigError(
                    f"the method {system.method!r} names the source {unknown[0]!r}; for the task {task!r} it may "
                    f"search {', '.join(map(repr, given)) or 'nothing'}. Name one of them, or add it to "
                    f"systems.{name}.sources."
                )
            if known.searches and not given:
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
    """Puts the name of a system before what is wrong with its method."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"the system {system!r}: {error}") from error
