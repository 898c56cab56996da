"""hyde as the rewriter of a training run: what the policy writes is searched with, graded and learned."""

import pytest
from querylect.train.run import train

from ..lessons import change, records

pytestmark = pytest.mark.model


def test_a_policy_learns_to_write_passages(settings):
    config = change(settings, **{"rewriter.name": "hyde", "train.steps": 2, "rollout.branching": [3, 2]})
    folder = train(config)
    steps = records(folder / "metrics.jsonl")
    assert len(steps) == 2
    assert any(step["grad_norm"] > 0 for step in steps), "passages differ in what they are worth, and are learned from"
    for turn in ("turn1", "turn2"):
        assert all(step[f"format/{turn}"] > 0.5 and step[f"failed_search/{turn}"] == 0 for step in steps)
        assert any(step[f"ndcg/{turn}"] > 0 for step in steps), "passages are searched and graded"
    assert (folder / "final" / "adapter_model.safetensors").is_file()
