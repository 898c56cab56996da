"""Several processes: the same trees, weights and figures as one, one service, one folder, one end."""

import pytest
from querylect.train.run import train

from .lessons import change, lesson_url, lessons, records, settings, speaking, without_seconds  # noqa: F401
from .several import Started


def weights_of(folder):
    from safetensors.torch import load_file

    (file,) = (folder / "final").glob("*.safetensors")
    return load_file(file)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train.packing": False, "policy.lora": None, "train.learning_rate": 1e-3, "train.scale": "batch"},
    ],
    ids=["lora packed", "full flat"],
)
def test_two_processes_are_one_process(settings, tmp_path, changes):
    """1×2n and 2×n: the same questions, samples and rewards, and weights that differ by rounding."""
    import torch

    config = change(settings, **{"train.questions_per_step": 4, "train.log_rollouts": 4, "train.steps": 3, **changes})
    one = train(config)
    both = change(config, output=str(tmp_path / "both"))
    with Started(both, tmp_path / "two", 2) as started:
        assert started.codes() == [0, 0], started.said(0) + started.said(1)
    two = tmp_path / "both" / "run"
    assert records(two / "rollouts.jsonl") == records(one / "rollouts.jsonl")
    print(started.said(0), started.said(1))
    for a, b in zip(without_seconds(one / "metrics.jsonl"), without_seconds(two / "metrics.jsonl"), strict=True):
        print({k: (a[k], b[k]) for k in a if a[k] != b[k]})
    before, after = weights_of(one), weights_of(two)
    for name, weights in before.items():
        print(name, (weights - after[name]).abs().max())
        assert torch.allclose(weights, after[name], atol=1e-6)
