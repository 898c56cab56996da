"""The environment is right: un-rewritten nDCG@10 on SciFact, asked over HTTP, equals what is published.

It is the only check that goes from files on disk through tokeniser, index, process, HTTP, fusion and metric to a number
that others measured. A shifted ranking or a wrong gain moves it by more than the tolerance, as do lost titles. Dense
retrieval is compared with sentence-transformers (test_peers.py). Milvus ranks as the local index does.
"""

import statistics

import pytest
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig
from querylect.data.corpus import load_dataset
from querylect.envs.build import build_index
from querylect.envs.client.child_process import local_service
from querylect.envs.client.client import EnvironmentClient, Step
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.rewards.metrics import ndcg

from .test_milvus import same_scores
from .wings import plan

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def bm25(realdata, tmp_path_factory):
    """The settings of a BM25 index of the whole collection, which is built."""
    dataset = DatasetConfig(path=str(realdata / "scifact"))
    config = EnvironmentConfig(dataset=dataset, retriever="bm25", index=str(tmp_path_factory.mktemp("bm25") / "index"))
    build_index(config)
    return config


def test_scifact_by_bm25_over_http(bm25):
    with local_service(bm25) as service, EnvironmentClient(ClientConfig(), [service]) as client:
        assert client.info().corpus_size == 5183
        questions = client.questions("test")
        results = client.step([Step(question_id=q.id, plan=SearchPlan.of(q.text)) for q in questions])
    assert len(results) == 300
    assert statistics.fmean(result.reward for result in results) == pytest.approx(0.679, abs=0.002)


def test_milvus_ranks_scifact_as_the_local_index_does(bm25, tmp_path):
    """Every question, as it is and with a second term."""
    milvus = bm25.model_copy(update={"engine": "milvus", "index": str(tmp_path / "index")})
    build_index(milvus)
    test = load_dataset(bm25.dataset).splits["test"]
    plans = [SearchPlan.of(question.text) for question in test.questions]
    for question in test.questions:
        plans.append(plan([(question.text, 1.0), (" ".join(question.text.split()[:3]), 0.5)], 10))
    rankings = Environment.open(milvus).rank(plans)
    same_scores(rankings, Environment.open(bm25).rank(plans))
    values = [
        ndcg([hit.id for hit in ranking], test.qrels[question.id])
        for question, ranking in zip(test.questions, rankings, strict=False)
    ]
    assert statistics.fmean(values) == pytest.approx(0.679, abs=0.002)
