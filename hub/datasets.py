"""Which datasets of the Hub a run was trained on, as far as that can be known."""

from collections.abc import Iterator
from pathlib import Path

from ..configs.environment import DatasetConfig
from ..configs.mix import environments
from ..configs.schema import RunConfig
from ..data.fetched import source_of
from ..data.known import known
from ..errors import DataError


def dataset_ids(config: RunConfig) -> list[str]:
    """Hub ids of the datasets behind the run's local environments; none for sets of the user's own."""
    found = [repo for one in environments(config).values() for repo in _ids(one.env.dataset)]
    return list(dict.fromkeys(found))


def _ids(dataset: DatasetConfig) -> Iterator[str]:
    names: list[str] = [dataset.kind]
    if dataset.path is not None:
        folder = Path(dataset.path)
        try:
            names.append(source_of(folder).name if folder.is_dir() else "")
        except DataError:
            return
    benchmarks = known()
    for name in names:
        if name.startswith("hub:"):
            yield name.removeprefix("hub:")
        elif name in benchmarks:
            yield from (repository.repo for repository in benchmarks[name].repositories)
