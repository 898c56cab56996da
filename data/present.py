"""Whether the source of a dataset is there, without reading it."""

from pathlib import Path

from ..configs.environment import DatasetConfig
from ..errors import DataError
from .beir import beir_folder


def refuse_missing_source(config: DatasetConfig) -> None:
    """Raise DataError if the folder, file or installed package that the settings name does not exist.

    What it holds is not looked at. An id of ir_datasets names no file and is not looked up.
    """
    if config.kind == "ir_datasets":
        return
    if config.path is None:
        if config.kind == "hpo":
            from .hpo import installed_file

            installed_file()
        elif config.kind == "wordnet":
            from .wordnet import installed_folder

            installed_folder()
    elif config.kind == "beir":
        beir_folder(config.path)
    elif not Path(config.path).expanduser().exists():
        raise DataError(
            f"dataset.path {config.path} does not exist; expected the source of a dataset of kind {config.kind!r} "
            "(docs/datasets.md). Check the path."
        )
