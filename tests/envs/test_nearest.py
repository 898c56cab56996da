"""Vectors of an index: kinds of search against exact search, on a CPU and on a GPU.

A CPU stands in for the GPU: `to_gpu`, the only function that needs one, is replaced.
"""

import json
from contextlib import nullcontext

import faiss
import numpy as np
import pytest
from querylect.configs.environment import EnvironmentConfig, VectorsConfig
from querylect.data.types import Document
from querylect.envs.plan import Probe, Term
from querylect.envs.presets import PRESETS
from querylect.envs.retrievers import dense, nearest
from querylect.errors import ModelError, RequestError

from ..raising import refused

ROWS, WIDTH = 3000, 16
KINDS = [{}, {"dtype": "float16"}, {"search": "hnsw"}, {"search": "hnsw", "dtype": "float16"}]


class Axes:
    """An encoder whose texts are vectors as JSON."""

    dimension = WIDTH

    def queries(self, texts):
        return np.array([json.loads(text) for text in texts], dtype=np.float32)

    def truncated(self, texts):
        return 0


def probe(row, *others, weight=0.0):
    """A probe of one vector and of others with that weight."""
    terms = [(row, 1.0), *((other, weight) for other in others)]
    return Probe(terms=tuple(Term(text=json.dumps([float(x) for x in row]), weight=weight) for row, weight in terms))


@pytest.fixture(scope="module")
def vectors():
    """Clustered, as embeddings are: an approximate search over pure noise finds little."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(60, WIDTH))
    return (centres[random.integers(60, size=ROWS)] + 0.3 * random.normal(size=(ROWS, WIDTH))).astype(np.float32)


def factory(encoder, **settings):
    kind = dense.DenseFactory(PRESETS["contriever"], EnvironmentConfig(vectors=VectorsConfig(**settings)))
    kind.encoder = encoder
    return kind


def opened(folder, vectors, **settings):
    """The retriever over vectors that were written in three parts."""
    kind, parts = factory(Axes(), **settings), []
    for number, piece in enumerate(np.array_split(vectors.astype(settings.get("dtype", "float32")), 3)):
        parts.append(folder / f"part{number}")
        parts[-1].mkdir(parents=True)
        np.save(parts[-1] / dense.VECTORS, piece)
    (folder / "index").mkdir()
    kind.merge(parts, folder / "index")
    return kind.load(folder / "index", vectors)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_finds_what_exact_search_finds_and_scores_it_exactly(tmp_path, vectors, kind):
    random = np.random.default_rng(1)
    mixed = [(vectors[a], vectors[b]) for a, b in random.integers(ROWS, size=(40, 2))]
    rankings = opened(tmp_path, vectors, **kind).rank([probe(a, b, weight=-0.4) for a, b in mixed], [10] * 40)
    retrieved = 0
    for (plus, minus), ranking in zip(mixed, rankings, strict=True):
        stored = vectors.astype(kind.get("dtype", "float32")).astype(np.float64)
        scores = stored @ (plus - 0.4 * minus.astype(np.float64))
        np.testing.assert_allclose(ranking.scores, scores[ranking.documents], rtol=1e-4)
        assert (np.diff(ranking.scores) <= 0).all()
        assert len(set(ranking.documents.tolist())) == 10
        retrieved += len(set(ranking.documents.tolist()) & set(np.argsort(-scores)[:10].tolist()))
    assert retrieved == 400 if "search" not in kind else retrieved > 360


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_many_copies_of_a_document_hide_no_other_and_come_in_corpus_order(tmp_path, kind):
    """300 equal texts among 325, as a crawl leaves them."""
    random = np.random.default_rng(3)
    rows = random.normal(size=(325, WIDTH)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[10:310] = rows[10]
    if kind.get("search"):  # as an encoder gives the same text in other batches
        rows[10:310] *= 1 + 3e-7 * random.integers(-1, 2, size=(300, 1)).astype(np.float32)
    retriever = opened(tmp_path, rows, **kind)
    alone = [*range(10), *range(310, 325)]
    found = retriever.rank([probe(rows[position]) for position in (*alone, 10)], [10] * 26)
    assert [ranking.documents[0] for ranking in found[:-1]] == alone
    assert set(found[-1].documents.tolist()) <= {*range(10, 310)}
    if "search" not in kind:
        assert found[-1].documents.tolist() == [*range(10, 20)]


def test_vectors_too_large_for_their_type_are_refused(tmp_path):
    class Large:
        def documents(self, texts, progress):
            return np.full((len(texts), 2), 7e4, dtype=np.float32)

    for dtype, expectation in (("float32", nullcontext()), ("float16", refused(ModelError, "float16"))):
        with expectation:
            factory(Large(), dtype=dtype).write_part(tmp_path, [Document("a", "", "a")])
    assert np.load(tmp_path / dense.VECTORS).dtype == np.float32


@pytest.fixture
def gpu(monkeypatch):
    """The data types of each call of `to_gpu`. float16 rounds the vectors as FAISS does on a GPU."""
    dtypes = []

    def to_gpu(index, dtype):
        dtypes.append(dtype)
        if dtype == "float16":
            return faiss.IndexScalarQuantizer(index.d, faiss.ScalarQuantizer.QT_fp16, index.metric_type)
        return faiss.clone_index(index)

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(nearest, "to_gpu", to_gpu)
    return dtypes


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_index_on_a_gpu_ranks_and_scores_as_on_the_cpu(tmp_path, gpu, vectors, dtype):
    probes = [probe(row, -row[::-1], weight=0.5) for row in vectors[:40]]
    ours, theirs = (opened(tmp_path / device, vectors, device=device, dtype=dtype) for device in ("gpu", "cpu"))
    for actual, expected in zip(ours.rank(probes, [10] * 40), theirs.rank(probes, [10] * 40), strict=True):
        assert actual.documents.tolist() == expected.documents.tolist()
        assert actual.scores.tolist() == expected.scores.tolist()
    assert gpu == [dtype]
    with refused(RequestError, 2066, 2048, "env.vectors.device=cpu"):
        ours.rank(probes, [2050] * 40)


def test_a_search_without_a_gpu_for_it_is_refused(tmp_path, gpu, vectors, monkeypatch):
    with refused(ModelError, "search=flat"):
        opened(tmp_path / "a", vectors[:100], device="gpu", search="hnsw")
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0, raising=False)
    with refused(ModelError, "device=cpu"):
        opened(tmp_path / "b", vectors[:100], device="gpu")
