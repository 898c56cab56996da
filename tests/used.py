"""What tests of using a rewriter need: run folders as training leaves them.

One policy keeps the format and says the same word to every question; the other never keeps it, and what it writes
instead differs from question to question.
"""

import json
import secrets
from pathlib import Path

import pytest
from querylect.configs.load import dump_config
from querylect.configs.trust import note_own_run
from querylect.envs.client.client import SyncEnvironmentClient
from querylect.train.run_folder import FORMAT

from .lessons import change, lesson_url, lessons, save_speaking, settings, speaking  # noqa: F401 (fixtures)


def make_own(folder: Path) -> None:
    """Make a folder with a config.yaml a run that the user started there."""
    (folder / "run.json").write_text(json.dumps({"format": FORMAT, "id": secrets.token_hex(16)}), encoding="utf-8")
    note_own_run(folder)


def save_run(config, folder: Path, scale: float = 0.05, turn: int | None = 1) -> Path:
    """A run folder as training leaves it, with random adapter weights as its final policy.

    `turn` won on validation; None for a run that was never validated.
    """
    import torch
    from querylect.rollouts.policy import add_lora, load_policy

    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    make_own(folder)
    with SyncEnvironmentClient(config.client) as client:
        searched = client.environment().model_dump(mode="json")
    (folder / "environment.json").write_text(json.dumps(searched), encoding="utf-8")
    if turn is not None:
        values = {f"ndcg/turn{one}": float(one == turn) for one in (1, 2)}
        record = {"step": config.train.steps, "questions": 5, "unscorable": 0, "turn": turn, **values}
        (folder / "validation.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    policy = add_lora(load_policy(config.policy)[0], config.policy)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight) * scale)
    policy.save_pretrained(folder / "final")
    return folder


@pytest.fixture
def trained(settings, tmp_path):  # noqa: F811
    """Settings of a run, and its folder; its policy keeps the format."""
    return settings, save_run(settings, tmp_path / "runs" / "run")


@pytest.fixture
def failing(settings, tiny_policy, tmp_path):  # noqa: F811
    """Settings of a run, and its folder; its policy never keeps the format."""
    changes = {"policy.model": str(tiny_policy), "rewriter.name": "general", "rollout.max_new_tokens": 12}
    config = change(settings, **changes)
    return config, save_run(config, tmp_path / "runs" / "failing", scale=0.1)
