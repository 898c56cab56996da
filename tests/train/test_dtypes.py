"""The dtype of trained weights: refusals, LoRA and DeepSpeed, and autocast in sampling and training."""

import json

import pytest
import torch
from querylect.errors import ConfigError
from querylect.rollouts.policy import load_policy
from querylect.train import run
from querylect.train.arguments import check_combinations, grpo_config, trainable_dtype
from querylect.train.run import train
from querylect.train.trainer import TreeTrainer

from ..lessons import change
from ..raising import refused

pytestmark = pytest.mark.model

FULL = {"policy.dtype": "bfloat16", "policy.lora": None}


def test_full_bfloat16_training_is_refused_before_anything_is_loaded(settings, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "shared_environment", pytest.fail, raising=False)
    config = change(settings, **FULL, **{"client.urls": ["http://127.0.0.1:9"]})
    remedies = ("policy.dtype=auto", "policy.dtype=float32", "policy.lora={}", "zero2.json")
    with refused(ConfigError, *remedies):
        train(config)
    assert not (tmp_path / "runs").exists()


def check(config):
    check_combinations(config.policy, config.rollout, config.train, 1)


@pytest.mark.parametrize("lora", [None, {}], ids=["full", "lora"])
def test_deepspeed_without_float32_copies_trains_no_bfloat16(settings, monkeypatch, tmp_path, lora):
    pytest.importorskip("deepspeed")
    file = tmp_path / "deepspeed.json"
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    config = change(settings, **{"policy.dtype": "bfloat16", "policy.lora": lora})
    masters = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}
    for stage, more, accepted in ((2, {}, True), (0, {}, False), (2, masters, False)):
        file.write_text(
            json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, **more})
        )
        check(change(config, **{"policy.dtype": "float32"}))
        if accepted:
            check(config)
        else:
            with refused(ConfigError, "policy.dtype=float32", "zero2.json"):
                check(config)


def fast(monkeypatch):
    """Make the device report fast bfloat16 products."""
    monkeypatch.setattr("querylect.rollouts.policy.has_fast_bfloat16", lambda: True)


def test_auto_trains_float32_weights_under_autocast_and_freezes_bfloat16_ones(settings, monkeypatch, tmp_path):
    fast(monkeypatch)
    full = change(settings, **{"policy.dtype": "auto", "policy.lora": None})
    assert trainable_dtype(full.policy, full.train).dtype == "float32"
    assert grpo_config(full, tmp_path).bf16
    assert not grpo_config(change(full, **{"policy.dtype": "float32"}), tmp_path).bf16
    lora = change(settings, **{"policy.dtype": "auto"})
    assert trainable_dtype(lora.policy, lora.train) == lora.policy
    assert load_policy(lora.policy)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8.0}], ids=["full", "lora"])
def test_what_is_trained_is_float32_also_after_a_resume(settings, monkeypatch, lora):
    """And so is the state of its optimizer; the base under the adapters stays in bfloat16."""
    fast(monkeypatch)
    states = []
    inner = TreeTrainer.training_step

    def look(trainer, *args, **kwargs):
        state = trainer.optimizer.state.values()
        moments = {value.dtype for weight_state in state for name, value in weight_state.items() if name != "step"}
        groups = [weight for group in trainer.optimizer.param_groups for weight in group["params"]]
        frozen = {weight.dtype for weight in trainer.model.parameters() if not weight.requires_grad}
        states.append(({weight.dtype for weight in groups}, moments, frozen))
        return inner(trainer, *args, **kwargs)

    monkeypatch.setattr(TreeTrainer, "training_step", look)
    config = change(settings, **{"policy.dtype": "auto", "policy.lora": lora, "train.steps": 1, "train.save_steps": 1})
    train(config)
    train(change(config, **{"train.steps": 2}), resume=True)
    base = {torch.bfloat16} if lora else set()
    assert states[0] == ({torch.float32}, set(), base)
    assert states[-1] == ({torch.float32}, {torch.float32}, base)
