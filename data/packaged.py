"""Small sets that are made from installed packages: written once, in BEIR form, to the user's cache."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from filelock import FileLock

from ..storage import data_sha256, writing
from .beir import beir_folder, save_beir
from .types import Dataset

Fields = Mapping[str, Mapping[str, object]]


def _hpo() -> tuple[Dataset, Fields]:
    from .hpo import load_hpo

    return load_hpo(), {}


def _wordnet() -> tuple[Dataset, Fields]:
    from .wordnet import answers_of, load_wordnet

    dataset = load_wordnet()
    return dataset, answers_of(dataset)


def _wordnet_conversations() -> tuple[Dataset, Fields]:
    from .wordnet import load_wordnet_conversations

    return load_wordnet_conversations(), {}


PACKAGED: Mapping[str, Callable[[], tuple[Dataset, Fields]]] = {
    "hpo": _hpo,
    "wordnet": _wordnet,
    "wordnet_conversations": _wordnet_conversations,
}
"""By name: the dataset, and further fields of its questions."""


def dataset_folder(path: str | Path) -> Path:
    """The folder of a dataset; a packaged one is made first where the cache has none of this version's code.

    Raises DataError if there is no such folder, or the package of a packaged one is not installed; StorageError if the
    cache cannot be written.
    """
    make = PACKAGED.get(str(path))
    if make is None:
        return beir_folder(path)
    sources = [file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parent.glob("*.py"))]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "querylect" / "datasets"
    folder = cache / f"{path}-{data_sha256(sources)[:12]}"
    if not folder.is_dir():
        with writing(folder):
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / f"{path}.lock"):
                if not folder.is_dir():
                    dataset, fields = make()
                    save_beir(dataset, folder, fields)
    return folder
