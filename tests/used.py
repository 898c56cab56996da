"""What tests of using a rewriter need: run folders as training leaves them.

One policy keeps the format and says the same word to every question; the other never keeps it, and what it writes
instead differs from question to question.
"""

import json
import secrets
import shutil
from pathlib import Path

import pytest
from querylect.configs.load import dump_config
from querylect.envs.client.client import EnvironmentClient

from .lessons import change, lesson_settings


def add_id(folder: Path) -> None:
    """Give a folder with a config.yaml the run.json of a run."""
    (folder / "run.json").write_text(json.dumps({"command": "train", "id": secrets.token_hex(16)}), encoding="utf-8")


def select_turn(folder: Path, turn: int) -> None:
    """Make a turn the best one on the validation questions of a run."""
    values = {f"ndcg/turn{number}": float(number == turn) for number in (1, 2)}
    record = {"step": 4, "questions": 5, "failed_searches": 0, "turn": turn, **values}
    (folder / "validation.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")


def save_run(config, folder: Path, scale: float = 0.05, turn: int = 1) -> Path:
    """A run folder as training leaves it, with random adapter weights as its final policy; `turn` won on validation."""
    import torch
    from querylect.rollouts.policy import add_lora, fingerprint, load_policy

    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    add_id(folder)
    with EnvironmentClient(config.client) as client:
        searched = client.info().model_dump(mode="json")
    (folder / "environment.json").write_text(json.dumps(searched), encoding="utf-8")
    select_turn(folder, turn)
    base, _ = load_policy(config.policy)
    base_model = {"model": config.policy.model, "fingerprint": fingerprint(base)}
    (folder / "base.json").write_text(json.dumps(base_model), encoding="utf-8")
    policy = add_lora(base, config.policy)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight) * scale)
    policy.save_pretrained(folder / "final")
    return folder


def copy_run(folder: Path, copy: Path) -> Path:
    """A copy of a run folder, to be changed."""
    shutil.copytree(folder, copy)
    add_id(copy)
    return copy


@pytest.fixture(scope="session")
def trained_run(lessons, lesson_url, speaking, tmp_path_factory):
    """Settings of a run, and its folder; its policy keeps the format. Not to be changed (see `trained`)."""
    folder = tmp_path_factory.mktemp("trained")
    config = lesson_settings(lessons, lesson_url, speaking, folder)
    return config, save_run(config, folder / "runs" / "run")


@pytest.fixture(scope="session")
def failing_run(trained_run, tiny_policy, tmp_path_factory):
    """The same with a policy that never keeps the format."""
    changes = {"policy.model": str(tiny_policy), "rewriter.name": "general", "rollout.max_new_tokens": 12}
    config = change(trained_run[0], **changes)
    return config, save_run(config, tmp_path_factory.mktemp("failing") / "failing", scale=0.1)


@pytest.fixture
def trained(trained_run, settings, tmp_path):
    """Settings of a run whose policy keeps the format, and its folder, to be changed."""
    return settings, copy_run(trained_run[1], tmp_path / "runs" / "run")


@pytest.fixture(scope="session")
def rewriter(trained_run):
    """A rewriter from the run whose policy keeps the format: its answer to every question is one word."""
    from querylect.inference.rewriter import Rewriter

    with Rewriter.from_pretrained(trained_run[1]) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def failing(failing_run):
    """A rewriter whose policy never keeps the format."""
    from querylect.inference.rewriter import Rewriter

    with Rewriter.from_pretrained(failing_run[1]) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def export(trained_run, tmp_path_factory) -> str:
    """The folder of an export with merged weights; not to be changed."""
    from querylect.export.export import export_to_folder

    options = {"merge_lora": True, "without_evaluation": True, "licence": "mit"}
    return export_to_folder(trained_run[1], tmp_path_factory.mktemp("export") / "export", **options)
