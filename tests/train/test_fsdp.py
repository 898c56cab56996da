"""FSDP2 with two and four processes against one process without it."""

from pathlib import Path

import pytest
from querylect.errors import ConfigError
from querylect.train.run import train

from ..lessons import change, records
from ..raising import refused
from ..several import FSDP2
from .test_zero import (
    FULL,
    WITH_VLLM,
    assert_same_training,
    assert_sampled_from_the_newest_weights,
    fork_split,
    launch_two,
)

pytestmark = [pytest.mark.server, pytest.mark.slow]

CONFIG = Path(__file__).parents[2] / "configs" / "fsdp" / "fsdp2.yaml"


def fork_fsdp(config, folder: Path, *arguments: str, processes: int = 2, code: str | None = None) -> None:
    fork_split(FSDP2, config, folder, *arguments, processes=processes, code=code)


REFERENCE = {"train.beta": 0.1, "train.warm_start.questions": 4}
"""A reference model, which is the policy after the warm start."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {}),
        (2, {**FULL, "train.max_tokens_per_micro_batch": 100, "train.questions_per_step": 4}),
        (4, {**FULL, **REFERENCE, "train.gradient_checkpointing": True}),
    ],
    ids=["lora", "full split", "full in four, recomputed, reference"],
)
def test_fsdp_trains_what_one_process_trains_and_resumes(settings, tmp_path, processes, changes):
    """Three steps: the second by the same processes after a resume, the third by one process without FSDP. Trees above
    the budget are split into more pieces in one process than in another."""
    common = {"train.questions_per_step": processes, "train.save_steps": 1, "train.steps": 1, **changes}
    split = change(settings, output=str(tmp_path / "split"), **common)
    fork_fsdp(split, tmp_path, processes=processes)
    fork_fsdp(split, tmp_path, "--resume", "train.steps=2", processes=processes)
    several = tmp_path / "split" / "run"
    single = train(change(settings, output=str(tmp_path / "one"), **{**common, "train.steps": 2}))
    assert_same_training(several, single, processes, split.train.learning_rate)
    assert {path.name for path in (several / "final").iterdir()} == {path.name for path in (single / "final").iterdir()}
    longer = {**common, "train.steps": 3}
    train(change(split, **longer), resume=True)
    train(change(settings, output=str(tmp_path / "one"), **longer), resume=True)
    assert_same_training(several, single, processes, split.train.learning_rate)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_accelerate_launches_fsdp_and_other_processes_go_on(settings, tmp_path):
    """By the packaged config, on a run that one process without FSDP has begun, with trees sampled ahead; compared with
    one process that resumes at the same steps. A resumed run samples its first trees anew."""
    common = {"train.save_steps": 1, "train.staleness": 1, "train.questions_per_step": 4, "train.validate_steps": 0}
    first_config = change(settings, output=str(tmp_path / "split"), **common, **{"train.steps": 1})
    folder = train(first_config)
    launch_two(["--config_file", str(CONFIG)], change(first_config, **{"train.steps": 3}), tmp_path, "--resume")
    fork_fsdp(first_config, tmp_path, "--resume", "train.steps=5", processes=4)
    for steps in (1, 3, 5):
        alone = change(first_config, output=str(tmp_path / "one"), **{"train.steps": steps})
        single = train(alone, resume=steps > 1)
    assert [line["sampling/staleness"] for line in records(folder / "metrics.jsonl")] == [0, 0, 1, 0, 1]
    assert_same_training(folder, single, 4, first_config.train.learning_rate)


@pytest.mark.timeout(1200)
def test_vllm_samples_from_the_weights_that_fsdp_has_just_trained(settings, tmp_path):
    sampled = {"rollout.engine": "vllm", "rollout.vllm.enable_sleep_mode": True, "train.steps": 3}
    fork_fsdp(change(settings, **sampled, **{"train.learning_rate": 0.05}), tmp_path, code=WITH_VLLM)
    assert_sampled_from_the_newest_weights(tmp_path / "runs" / "run")


@pytest.mark.parametrize("version", ["1", "2"])
def test_what_fsdp_does_not_do_here_is_refused(settings, monkeypatch, version):
    """Its first version, and a single process."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", version)
    with refused(ConfigError, "configs/fsdp/fsdp2.yaml"):
        train(settings)
