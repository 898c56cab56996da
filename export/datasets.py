"""Hub ids of the datasets that a run was trained on, where they can be determined."""

from collections.abc import Iterator
from pathlib import Path

from ..configs.environment import DatasetConfig
from ..configs.mix import environments
from ..configs.schema import RunConfig
from ..data.fetched import source_of
from ..data.known import known
from ..errors import DataError


def dataset_ids(config: RunConfig) -> list[str]:
    """Hub ids of the datasets of the run's local environments; the user's own datasets have none."""
    repos = [repo for environment in environments(config).values() for repo in _ids(environment.env.dataset)]
    return list(dict.fromkeys(repos))


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
