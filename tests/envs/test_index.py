"""Index folders: what is in them, what is refused, what is replaced, and that every flipped byte is found."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.corpus import Origin, load_dataset
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.index import IndexMeta, open_index, verify_index
from querylect.envs.plan import SearchPlan
from querylect.envs.presets import RetrieverPreset
from querylect.envs.retrievers.bm25 import Bm25Factory
from querylect.envs.retrievers.dense import DenseFactory
from querylect.envs.retrievers.open import open_retriever, verify_indexes
from querylect.errors import IndexFolderError

from ..encoders import save_bert
from ..raising import refused

WORDS = ("wing", "heat", "slab", "flow", "drag")


def save_dataset(path, documents=40):
    corpus = [
        Document(id=f"d{i}", title=WORDS[i % 5], text=f"{WORDS[i % 3]} {WORDS[(i * i) % 5]} word{i}")
        for i in range(documents)
    ]
    split = Split(questions=[Question(id="q", text="wing heat")], qrels={"q": {"d0": 1}})
    save_beir(Dataset(name=path.name, corpus=corpus, splits={"test": split}), path)
    return DatasetConfig(path=str(path))


@pytest.fixture
def config(tmp_path):
    return EnvironmentConfig(dataset=save_dataset(tmp_path / "data"), index=str(tmp_path / "indexes" / "it"))


def reopened(config):
    return open_retriever(open_index(config.index), config, load_dataset(config.dataset))


@pytest.mark.parametrize("engine", ["bm25s", "rank_bm25"])
def test_a_built_index_is_verified_and_ranks_and_holds_no_pickle(config, engine):
    config, calls = config.model_copy(update={"engine": engine}), []
    meta = build_index(config, progress=lambda done, total: calls.append((done, total)))
    assert verify_index(config.index) == meta
    assert calls[-1] == (40, 40)
    assert (meta.documents, meta.preset.name, meta.settings["engine"]) == (40, "bm25", engine)
    assert meta.versions["bm25s"]
    assert Environment.open(config).rank([SearchPlan.of("heat of a wing")])[0]
    assert os.listdir(Path(config.index).parent) == ["it"]
    assert {*meta.files, "meta.json"} == set(os.listdir(config.index))
    for name in meta.files:
        path = Path(config.index) / name
        if path.suffix == ".npy":
            assert np.load(path, allow_pickle=False).dtype != object
        else:
            with path.open("rb") as file, pytest.raises(pickle.UnpicklingError):
                pickle.load(file)


def test_an_index_of_other_settings_is_refused_and_replaced_when_asked(config, tmp_path):
    original = build_index(config)
    larger = config.model_copy(update={"dataset": save_dataset(tmp_path / "other", documents=41)})
    with refused(IndexFolderError, "'data', 40", "'other' (41"):
        reopened(larger)
    with refused(IndexFolderError, "engine 'bm25s'", "engine 'rank_bm25'"):
        reopened(config.model_copy(update={"engine": "rank_bm25"}))
    with refused(IndexFolderError, "name 'bm25'", "name 'contriever'"):
        reopened(config.model_copy(update={"retriever": "contriever"}))
    with refused(IndexFolderError, config.index, "--overwrite"):
        build_index(larger)
    assert verify_index(config.index) == original
    replaced = build_index(larger, overwrite=True)
    assert verify_index(config.index) == replaced != original


def test_a_folder_that_is_no_index_is_never_overwritten(config):
    thesis = Path(config.index) / "thesis.tex"
    thesis.parent.mkdir(parents=True)
    thesis.touch()
    with refused(IndexFolderError, config.index):
        build_index(config, overwrite=True)
    assert thesis.exists()


@pytest.mark.parametrize("kind", ["bm25", pytest.param("hnsw", marks=pytest.mark.model)])
def test_a_flipped_byte_of_any_file_is_found_by_verifying(kind, config, tmp_path):
    if kind == "hnsw":
        dense = {"retriever": "bge-small-en-v1.5", "model": save_bert(tmp_path / "bert"), "vectors": {"search": "hnsw"}}
        config = EnvironmentConfig.model_validate(config.model_dump() | dense)
    build_index(config)
    files = [file for file in Path(config.index).iterdir() if file.stat().st_size and file.name != "meta.json"]
    for file in files:
        content = file.read_bytes()
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with refused(IndexFolderError, file.parent, f"{file.name} "):
            verify_indexes(config)
        file.write_bytes(content)
    verify_indexes(config)
    expected = {"bm25": {"words.bin", "data.csc.index.npy"}, "hnsw": {"vectors.npy", "nearest.faiss"}}[kind]
    assert {file.name for file in files} > expected | {"documents.bin", "ids.order.npy"}


def test_an_index_that_was_copied_in_part_is_called_damaged_where_it_is_opened(config):
    build_index(config)
    for name, size in [
        ("documents.bin", 0),
        ("documents.offsets.npy", 90),
        ("indices.csc.index.npy", 300),
        ("words.bin", None),
    ]:
        file = Path(config.index) / name
        content = file.read_bytes()
        file.unlink()
        if size is not None:
            file.write_bytes(content[:size])
        with refused(IndexFolderError, config.index, "damaged", "index verify"):
            Environment.open(config)
        file.write_bytes(content)
    Environment.open(config)


PRESET = RetrieverPreset(name="encoder", kind="dense", trained="A sentence encoder.")
OTHER_PRESET = {
    "name": "another", "pooling": "mean", "similarity": "dot", "query_prompt": "query: ",
    "document_prompt": "passage: ", "pair": True, "max_length": 128, "query_max_length": 32, "dtype": "bfloat16",
}  # fmt: skip


def hashed(settings, **changes):
    """The hash of an index with these settings."""
    values = {
        "preset": PRESET, "settings": settings, "dataset": "toy", "licence": "CC0", "corpus_hash": "c", "documents": 4,
        "origin": Origin(size=1, modified=2, fingerprint="o"), "versions": {"numpy": "2"}, "files": {"v.npy": "s"},
    }  # fmt: skip
    return IndexMeta(**(values | changes)).index_hash


def dense_settings(preset=PRESET, weights="w", **config):
    class Loaded:
        fingerprint = weights

    kind = DenseFactory(preset, EnvironmentConfig.model_validate(config))
    kind.encoder = Loaded()
    Loaded.preset = preset
    return kind.settings


def test_everything_that_a_ranking_depends_on_is_hashed_and_nothing_else():
    assert RetrieverPreset.model_fields.keys() - OTHER_PRESET.keys() == {"trained", "model", "query_model", "kind"}
    settings = [dense_settings(), dense_settings(weights="x"), dense_settings(vectors={"search": "hnsw"})]
    settings += [dense_settings(PRESET.model_copy(update={field: value})) for field, value in OTHER_PRESET.items()]
    bm25 = PRESET.model_copy(update={"kind": "bm25"})
    for config in (EnvironmentConfig(), EnvironmentConfig(engine="rank_bm25"), EnvironmentConfig(language="german")):
        settings.append(Bm25Factory(bm25, config).settings)
    hashes = [hashed(each) for each in settings]
    hashes += [hashed(settings[0], corpus_hash="d"), hashed(settings[0], files={"v.npy": "t"})]
    assert len(set(hashes)) == len(hashes)
    moved = PRESET.model_copy(update={"model": "/elsewhere", "trained": "Otherwise."})
    elsewhere = dense_settings(moved, index="there", language="german", vectors={"device": "gpu"})
    assert hashed(elsewhere, dataset="copy", licence="", versions={}) == hashes[0]
