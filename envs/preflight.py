"""Checks of an environment's settings that need no library import and read no file.

The code that uses the settings refuses the same mistakes in the same words; here a mistake is reported in milliseconds,
before a service is started or a model is loaded.
"""

from collections.abc import Iterator
from pathlib import Path

from ..configs.environment import EnvironmentConfig
from ..data.present import refuse_missing_source
from ..errors import IndexFolderError
from .index_names import member_settings
from .recipes import find_recipe, recipe_of


def check_environment(config: EnvironmentConfig) -> None:
    """Raise ConfigError for an unknown retriever, IndexFolderError for a missing index, DataError for missing data."""
    check_retriever(config)
    for folder in _indexes(config):
        index_folder(folder)
    refuse_missing_source(config.dataset)


def check_build(config: EnvironmentConfig) -> None:
    """The same before an index is built; StorageError where it could not be written."""
    check_retriever(config)
    refuse_missing_source(config.dataset)


def check_retriever(config: EnvironmentConfig) -> None:
    """Raise ConfigError for an unknown retriever, also of a hybrid's member or a question index, and as `recipe_of`."""
    recipe_of(config)
    for member in config.hybrid.members if config.hybrid is not None else ():
        find_recipe(member.retriever, member.model)
    if config.question_index is not None:
        find_recipe(config.question_index.retriever, config.question_index.model)


def index_folder(path: str | Path) -> Path:
    """The existing folder of that path. Raises IndexFolderError where there is none."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise IndexFolderError(f"index folder {folder} does not exist. Build it: querylect index build.")
    return folder


def _indexes(config: EnvironmentConfig) -> Iterator[str]:
    yield config.index
    for member in member_settings(config) if config.hybrid is not None else ():
        yield member.index
    if config.question_index is not None:
        yield config.question_index.index
