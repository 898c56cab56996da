"""What tests of using a rewriter need: a run folder whose trained policy answers different questions differently."""

import json
from pathlib import Path

import pytest
from querylect.configs.load import dump_config
from querylect.envs.client import SyncEnvironmentClient

from .lessons import change, lesson_url, lessons, save_speaking, settings, speaking  # noqa: F401 (fixtures)


def save_run(config, folder: Path, scale: float = 0.6, seed: int = 0) -> Path:
    """A run folder as training leaves it, with random adapter weights as its final policy."""
    import torch
    from querylect.rollouts.policy import add_lora, load_policy

    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    with SyncEnvironmentClient(config.client) as client:
        searched = client.environment().model_dump(mode="json")
    (folder / "environment.json").write_text(json.dumps(searched), encoding="utf-8")
    policy = add_lora(load_policy(config.policy)[0], config.policy)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight) * scale)
    policy.save_pretrained(folder / "final")
    return folder


@pytest.fixture
def trained(settings, tmp_path):  # noqa: F811
    """Settings of a run, and its folder."""
    return settings, save_run(settings, tmp_path / "runs" / "run")
