"""TRL's own GRPOTrainer on a tiny model: its settings, what a training logs and moves, and an unavailable client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import EnvironmentClient

from .pauses import PausesOnly


@pytest.fixture
def unavailable_client() -> Iterator[EnvironmentClient]:
    """A client whose service is down."""
    with EnvironmentClient(ClientConfig(), ["http://127.0.0.1:9"], PausesOnly().clock) as client:
        yield client


def grpo_config(folder: Path, **changes: Any) -> Any:
    """Two steps, each with four samples of one question."""
    from trl import GRPOConfig

    settings = {
        "output_dir": str(folder),
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "learning_rate": 1e-2,
        "report_to": [],
        "logging_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "shuffle_dataset": False,
        "disable_tqdm": True,
    }
    return GRPOConfig(**{**settings, **changes})


def train(trainer: Any) -> tuple[list[dict[str, Any]], bool]:
    """Train; the logged steps and whether a weight has moved."""
    initial = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    moved = any(not value.equal(initial[name]) for name, value in trainer.model.named_parameters())
    return [entry for entry in trainer.state.log_history if "reward" in entry], moved
