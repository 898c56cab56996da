"""Index folders: what is refused, what is replaced, and what a failed build leaves behind (finished parts at most)."""

import os
import pickle

import numpy as np
import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.load import load_dataset
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.index.meta import open_index, verify_index
from querylect.envs.plan import Probe, Term
from querylect.envs.retrievers.open import open_retriever
from querylect.errors import IndexFolderError

from ..raising import refused

pytestmark = pytest.mark.server

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


def ranked(retriever):
    (ranking,) = retriever.rank([Probe(terms=(Term(text="heat of a wing"),))], [10])
    return ranking.documents.tolist(), ranking.scores.tolist()


def left_in(config):
    folder = os.path.dirname(config.index)
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


@pytest.mark.parametrize("engine", ["bm25s", "rank_bm25"])
def test_a_built_index_is_verified_and_ranks(config, engine):
    config = config.model_copy(update={"engine": engine})
    progress_calls = []
    meta = build_index(config, progress=lambda done, total: progress_calls.append((done, total)))
    assert verify_index(config.index) == meta
    assert progress_calls[-1] == (40, 40)
    assert (meta.documents, meta.preset.name, meta.settings["engine"]) == (40, "bm25", engine)
    assert meta.versions["bm25s"]
    assert ranked(reopened(config))[0]
    assert left_in(config) == ["it"]


def test_every_file_is_in_the_meta_and_none_is_a_pickle(config):
    meta = build_index(config)
    assert {*meta.files, "meta.json"} == set(os.listdir(config.index))
    for name in meta.files:
        path = os.path.join(config.index, name)
        if name.endswith(".npy"):
            assert np.load(path, allow_pickle=False).dtype != object
        else:
            assert name in ("documents.bin", "ids.bin", "words.bin")
            with open(path, "rb") as file, pytest.raises(pickle.UnpicklingError):
                pickle.load(file)


def test_an_index_of_another_corpus_is_refused(config, tmp_path):
    build_index(config)
    larger = config.model_copy(update={"dataset": save_dataset(tmp_path / "other", documents=41)})
    with refused(IndexFolderError, "'data', 40", "'other' (41"):
        reopened(larger)


def test_an_index_of_another_engine_or_retriever_is_refused(config):
    build_index(config)
    with refused(IndexFolderError, "engine 'bm25s'", "engine 'rank_bm25'"):
        reopened(config.model_copy(update={"engine": "rank_bm25"}))
    with refused(IndexFolderError, "name 'bm25'", "name 'contriever'"):
        reopened(config.model_copy(update={"retriever": "contriever"}))


def test_an_existing_index_is_replaced_only_when_asked(config, tmp_path):
    original = build_index(config)
    larger = config.model_copy(update={"dataset": save_dataset(tmp_path / "other", documents=41)})
    with refused(IndexFolderError, config.index, "--overwrite"):
        build_index(larger)
    assert verify_index(config.index) == original
    replaced = build_index(larger, overwrite=True)
    assert verify_index(config.index) == replaced != original
    assert left_in(config) == ["it"]


def test_a_folder_that_is_no_index_is_never_overwritten(config):
    os.makedirs(config.index)
    user_file = os.path.join(config.index, "thesis.tex")
    with open(user_file, "w", encoding="utf-8"):
        pass
    with refused(IndexFolderError, config.index):
        build_index(config, overwrite=True)
    assert os.path.exists(user_file)
