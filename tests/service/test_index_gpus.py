"""An index on several GPUs. A CPU stands in for each: `to_gpu`, the only function that needs one, is replaced."""

import faiss
import numpy as np
import pytest
from querylect.envs.plan import Probe, Term
from querylect.envs.retrievers import gpu_index, nearest
from querylect.errors import ModelError, RequestError

from ..raising import refused
from .test_index_vectors import WIDTH, opened, vector_text

IVFPQ = {"search": "ivfpq", "ivf_probes": 5}
VECTORS = np.random.default_rng(0).normal(size=(3000, WIDTH)).astype(np.float32)


@pytest.fixture
def gpus(monkeypatch):
    """Eight GPUs; (gpu, dtype, index) of each call of `to_gpu`. float16 rounds the vectors as FAISS does on a GPU."""
    calls = []

    def to_gpu(index, gpu, dtype):
        if dtype == "float16" and isinstance(index, faiss.IndexFlat):
            copy = faiss.IndexScalarQuantizer(index.d, faiss.ScalarQuantizer.QT_fp16, index.metric_type)
        else:
            copy = faiss.clone_index(index)
        calls.append((gpu, dtype, copy))
        return copy

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 8, raising=False)
    monkeypatch.setattr(gpu_index, "to_gpu", to_gpu)
    return calls


def probes(rows):
    return [Probe(terms=(Term(text=vector_text(row)), Term(text=vector_text(-rows[0]), weight=0.5))) for row in rows]


def same_rankings(ours, theirs, rows, limit=10):
    for actual, expected in zip(
        *(index.rank(probes(rows), [limit] * len(rows)) for index in (ours, theirs)), strict=True
    ):
        assert actual.documents.tolist() == expected.documents.tolist()
        assert actual.scores.tolist() == expected.scores.tolist()


def test_a_flat_index_on_three_gpus_ranks_and_scores_like_one(tmp_path, gpus):
    """With more vectors than are converted at once, and equal vectors on different GPUs."""
    vectors = np.random.default_rng(0).normal(size=(nearest._ROWS + 4465, WIDTH)).astype(np.float32)
    vectors[[7, 30_000, 70_000]] = vectors[3]
    settings = {"device": "gpu", "gpus": [2, 5, 3]}
    same_rankings(opened(tmp_path / "gpus", vectors, **settings), opened(tmp_path / "cpu", vectors), vectors[:20])
    sizes = [23_333, 23_334, 23_334]
    assert [(gpu, dtype, index.ntotal) for gpu, dtype, index in gpus] == [
        (gpu, "float32", size) for gpu, size in zip((2, 5, 3), sizes, strict=True)
    ]


def test_ivfpq_on_three_gpus_ranks_and_scores_like_one(tmp_path, gpus):
    settings = {"device": "gpu", "gpus": [0, 1, 2]}
    ours = opened(tmp_path / "gpus", VECTORS, **IVFPQ, **settings)
    same_rankings(ours, opened(tmp_path / "cpu", VECTORS, **IVFPQ), VECTORS[:40])
    assert [index.ntotal for _, _, index in gpus] == [1000] * 3


def test_only_the_first_gpu_is_used_unless_others_are_named(tmp_path, gpus):
    opened(tmp_path, VECTORS, device="gpu")
    assert [gpu for gpu, _, _ in gpus] == [0]


def test_fewer_documents_than_gpus_are_all_ranked(tmp_path, gpus):
    few = VECTORS[:3]
    ours = opened(tmp_path / "gpus", few, device="gpu", gpus=[0, 1, 2, 3, 4])
    same_rankings(ours, opened(tmp_path / "cpu", few), few)
    assert len(gpus) == 3


def test_float16_on_gpus_finds_more_candidates_and_scores_them_as_stored(tmp_path, gpus):
    ours = opened(tmp_path / "gpus", VECTORS, device="gpu", gpus=[0, 1], dtype="float16")
    same_rankings(ours, opened(tmp_path / "cpu", VECTORS, dtype="float16"), VECTORS[:40])
    assert {dtype for _, dtype, _ in gpus} == {"float16"}
    assert ours._search(VECTORS[:2], 30).shape == (2, 120)


def test_more_documents_than_a_gpu_finds_are_refused(tmp_path, gpus):
    ours = opened(tmp_path, VECTORS, device="gpu", dtype="float16")
    assert ours._search(VECTORS[:2], 2000).shape == (2, 2048)
    with refused(RequestError, 2049, 2048, "env.vectors.device=cpu"):
        ours._search(VECTORS[:2], 2049)


def test_a_gpu_that_is_not_there_is_refused(tmp_path, gpus):
    with refused(ModelError, "GPU 8;", " 8,"):
        opened(tmp_path / "a", VECTORS, device="gpu", gpus=[0, 8])
    with refused(ModelError, "HNSW"):
        opened(tmp_path / "b", VECTORS, device="gpu", search="hnsw")
