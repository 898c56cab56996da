"""Vectors of an index: kinds of search against exact search."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
from querylect.configs.environment import EnvironmentConfig, VectorsConfig
from querylect.data.types import Document
from querylect.envs.build import build_index
from querylect.envs.plan import Probe, Term
from querylect.envs.presets import PRESETS
from querylect.envs.retrievers import dense
from querylect.errors import ConfigError, ModelError

from ..encoders import save_bert
from ..raising import refused
from .test_index_build import write_corpus

pytestmark = pytest.mark.server

ROWS, WIDTH = 3000, 16
KINDS = [
    {"dtype": "float32"},
    {"dtype": "float16"},
    {"search": "hnsw"},
    {"search": "hnsw", "dtype": "float16"},
    {"search": "ivfpq"},
]
NAMES = ["-".join(str(value) for value in kind.values()) for kind in KINDS]


class Axes:
    """An encoder whose texts are vectors as JSON."""

    dimension = WIDTH

    def queries(self, texts):
        return np.array([json.loads(text) for text in texts], dtype=np.float32)


def vector_text(row):
    return json.dumps([float(value) for value in row])


@pytest.fixture(scope="module")
def vectors():
    """Clustered, as embeddings are: an approximate search over pure noise finds little."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(60, WIDTH))
    return (centres[random.integers(60, size=ROWS)] + 0.3 * random.normal(size=(ROWS, WIDTH))).astype(np.float32)


def opened(folder, vectors, **settings):
    """The retriever over vectors that were written in three parts."""
    config = VectorsConfig(**settings)
    parts = []
    for number, piece in enumerate(np.array_split(vectors.astype(config.dtype), 3)):
        parts.append(folder / f"part{number}")
        parts[-1].mkdir(parents=True)
        np.save(parts[-1] / dense.VECTORS, piece)
    (folder / "index").mkdir()
    kind = dense.DenseFactory(PRESETS["contriever"], config)
    kind.encoder = Axes()
    kind.merge(parts, folder / "index")
    return kind.load(folder / "index", vectors)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_every_kind_finds_what_exact_search_finds_and_scores_it_exactly(tmp_path, vectors, kind):
    random = np.random.default_rng(1)
    mixed = [(vectors[a], vectors[b]) for a, b in random.integers(ROWS, size=(40, 2))]
    probes = [Probe(terms=(Term(text=vector_text(a)), Term(text=vector_text(b), weight=-0.4))) for a, b in mixed]
    rankings = opened(tmp_path, vectors, **kind).rank(probes, [10] * 40)
    retrieved = 0
    for (plus, minus), ranking in zip(mixed, rankings, strict=True):
        scores = vectors.astype(kind.get("dtype", "float32")).astype(np.float64) @ (
            plus - 0.4 * minus.astype(np.float64)
        )
        np.testing.assert_allclose(ranking.scores, scores[ranking.documents], rtol=1e-4)
        assert (np.diff(ranking.scores) <= 0).all()
        assert len(set(ranking.documents.tolist())) == 10
        retrieved += len(set(ranking.documents.tolist()) & set(np.argsort(-scores)[:10].tolist()))
    assert retrieved == 400 if "search" not in kind else retrieved > 360


@pytest.mark.parametrize("kind", KINDS[:4], ids=NAMES[:4])
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
    texts = [vector_text(rows[position]) for position in (*alone, 10)]
    found = retriever.rank([Probe(terms=(Term(text=text),)) for text in texts], [10] * 26)
    assert [ranking.documents[0] for ranking in found[:-1]] == alone
    assert set(found[-1].documents.tolist()) <= {*range(10, 310)}
    if "search" not in kind:
        assert found[-1].documents.tolist() == [*range(10, 20)]


def test_vectors_too_large_for_their_type_are_refused(tmp_path):
    class Large:
        preset = PRESETS["contriever"]

        def documents(self, texts, progress):
            return np.full((len(texts), 2), 7e4, dtype=np.float32)

    for dtype, expectation in (("float32", nullcontext()), ("float16", refused(ModelError, "float16"))):
        kind = dense.DenseFactory(PRESETS["contriever"], VectorsConfig(dtype=dtype))
        kind.encoder = Large()
        with expectation:
            kind.write_part(tmp_path, [Document("a", "", "a")])
    assert np.load(tmp_path / dense.VECTORS).dtype == np.float32


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    save_bert(folder / "bert")
    config = EnvironmentConfig(
        dataset=write_corpus(folder / "data"),
        index=str(folder / "it"),
        retriever="contriever",
        model=str(folder / "bert"),
        vectors=VectorsConfig(search="hnsw"),
    )
    build_index(config)
    return config


def changed(config, **settings):
    return config.model_copy(update={"vectors": VectorsConfig(**settings)})


def test_too_few_documents_for_ivfpq_are_refused(built, tmp_path):
    config = built.model_copy(update={"index": str(tmp_path / "it")})
    with refused(ConfigError, 256, "'flat'"):
        build_index(changed(config, search="ivfpq"))
