"""An index on a GPU. A CPU stands in for it: `to_gpu`, the only function that needs one, is replaced."""

import faiss
import numpy as np
import pytest
from querylect.envs.plan import Probe, Term
from querylect.envs.retrievers import nearest
from querylect.errors import ModelError, RequestError

from ..raising import refused
from .test_index_vectors import WIDTH, opened, vector_text

pytestmark = pytest.mark.server

VECTORS = np.random.default_rng(0).normal(size=(3000, WIDTH)).astype(np.float32)


@pytest.fixture
def gpu(monkeypatch):
    """The data types of each call of `to_gpu`. float16 rounds the vectors as FAISS does on a GPU."""
    dtypes = []

    def to_gpu(index, dtype):
        dtypes.append(dtype)
        if dtype == "float16" and isinstance(index, faiss.IndexFlat):
            return faiss.IndexScalarQuantizer(index.d, faiss.ScalarQuantizer.QT_fp16, index.metric_type)
        return faiss.clone_index(index)

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(nearest, "to_gpu", to_gpu)
    return dtypes


@pytest.mark.parametrize("settings", [{}, {"search": "ivfpq"}, {"dtype": "float16"}], ids=str)
def test_an_index_on_a_gpu_ranks_and_scores_as_on_the_cpu(tmp_path, gpu, settings):
    probes = [
        Probe(terms=(Term(text=vector_text(row)), Term(text=vector_text(-row[::-1]), weight=0.5)))
        for row in VECTORS[:40]
    ]
    ours = opened(tmp_path / "gpu", VECTORS, device="gpu", **settings)
    theirs = opened(tmp_path / "cpu", VECTORS, **settings)
    for actual, expected in zip(*(index.rank(probes, [10] * 40) for index in (ours, theirs)), strict=True):
        assert actual.documents.tolist() == expected.documents.tolist()
        assert actual.scores.tolist() == expected.scores.tolist()
    assert gpu == [settings.get("dtype", "float32")]


def test_more_documents_than_a_gpu_finds_are_refused(tmp_path, gpu):
    ours = opened(tmp_path, VECTORS, device="gpu", dtype="float16")
    assert ours._search(VECTORS[:2], 30).shape == (2, 120), "rounded vectors need more candidates"
    assert ours._search(VECTORS[:2], 2000).shape == (2, 2048)
    with refused(RequestError, 2049, 2048, "env.vectors.device=cpu"):
        ours._search(VECTORS[:2], 2049)


def test_a_search_without_a_gpu_for_it_is_refused(tmp_path, gpu, monkeypatch):
    with refused(ModelError, "HNSW"):
        opened(tmp_path / "a", VECTORS, device="gpu", search="hnsw")
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0, raising=False)
    with refused(ModelError, "device=cpu"):
        opened(tmp_path / "b", VECTORS, device="gpu")
