"""A flipped byte of any file of an index is found by `index verify`."""

from pathlib import Path

import pytest
from querylect.configs.schema import EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.retrievers.open import verify_indexes
from querylect.errors import IndexFolderError

from ..encoders import save_bert
from ..raising import refused

pytestmark = pytest.mark.server

WORDS = ("heat", "wing", "air", "layer", "tunnel", "plate", "drag")
TEXTS = {f"d{n}": f"{WORDS[n % 7]} {WORDS[n % 5]} of a {WORDS[n % 3]} number{n}" for n in range(260)}
"""As many documents as an IVF-PQ index learns from."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "beir"
    split = Split([Question("q", "heat")], {"q": {"d0": 1}})
    corpus = [Document(name, f"About {name}", text) for name, text in TEXTS.items()]
    save_beir(Dataset("rot", corpus, {"test": split}), folder)
    return {"path": str(folder)}


def settings_of(kind, folder):
    """The retriever settings of each kind of index."""
    if kind != "bm25":
        save_bert(folder / "bert")
    dense = {"retriever": "bge-small-en-v1.5", "model": str(folder / "bert")}
    return {"bm25": {}, "ivfpq": {**dense, "vectors": {"search": "ivfpq"}}}[kind]


def flipped_one_by_one(config, folders):
    """Flip a byte in the middle of every file in turn; verifying names the file."""
    files = [
        file
        for folder in folders
        for file in sorted(Path(folder).iterdir())
        if file.stat().st_size and file.name not in ("meta.json", "questions.json")
    ]
    for file in files:
        content = file.read_bytes()
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with refused(IndexFolderError, file.parent, f"{file.name} "):
            verify_indexes(config)
        file.write_bytes(content)
    verify_indexes(config)
    return {file.name for file in files}


KINDS = {
    "bm25": {"words.bin", "data.csc.index.npy", "ids.order.npy"},
    "ivfpq": {"vectors.npy", "nearest.faiss"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_of_any_file_is_found_by_verifying(kind, dataset, tmp_path):
    plain = {"dataset": dataset, "index": f"{tmp_path}/index", **settings_of(kind, tmp_path)}
    config = EnvironmentConfig.model_validate(plain)
    build_index(config)
    assert flipped_one_by_one(config, [config.index]) > KINDS[kind] | {"documents.bin"}


def test_an_index_that_was_copied_in_part_is_called_damaged_where_it_is_opened(dataset, tmp_path):
    config = EnvironmentConfig(dataset=dataset, index=str(tmp_path / "index"))
    build_index(config)
    for name, size in [
        ("documents.bin", 0),
        ("documents.offsets.npy", 90),
        ("indices.csc.index.npy", 300),
        ("words.bin", None),
    ]:
        file = tmp_path / "index" / name
        content = file.read_bytes()
        file.unlink()
        if size is not None:
            file.write_bytes(content[:size])
        with refused(IndexFolderError, tmp_path / "index", "damaged", "index verify"):
            Environment.open(config)
        file.write_bytes(content)
    Environment.open(config)
