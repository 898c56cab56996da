"""DeepSpeed's ZeRO with two and four processes against one process without it. Skipped where it is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from querylect.errors import CheckpointError
from querylect.train.run import train
from querylect.train.run_folder import RunFolder
from querylect.train.sharding import OPTIMIZER_PARTS

from ..lessons import change, records
from ..raising import refused
from ..several import Started, free_port
from .test_processes import assert_same_updates, weights_of

pytestmark = [pytest.mark.server, pytest.mark.slow]

CONFIGS = Path(__file__).parents[2] / "configs" / "deepspeed"
FULL = {"policy.lora": None, "train.learning_rate": 1e-3}


def launch_zero(stage: int, config, folder: Path, *arguments: str) -> None:
    options = ["--use_deepspeed", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    options += ["--deepspeed_config_file", str(CONFIGS / f"zero{stage}.json")]
    launch_two(options, config, folder, *arguments)


def launch_two(options: list[str], config, folder: Path, *arguments: str) -> None:
    """As in the documentation, with accelerate's launcher."""
    config_file = folder / "launched.yaml"
    config_file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    launch = [sys.executable, "-m", "accelerate.commands.launch", *options, "--num_processes", "2"]
    launch += ["--main_process_port", str(free_port())]
    ended = subprocess.run(
        [*launch, "-m", "querylect", "train", str(config_file), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


def fork_zero(stage: int, config, folder: Path, *arguments: str, processes: int = 2, code: str | None = None) -> None:
    """The same with the surroundings that the launcher gives to its processes, which costs a third of its time; with
    `code` in the place of the command."""
    surroundings = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(CONFIGS / f"zero{stage}.json"),
        "ACCELERATE_MIXED_PRECISION": "no",
    }
    fork_split(surroundings, config, folder, *arguments, processes=processes, code=code)


def fork_split(
    surroundings: dict[str, str], config, folder: Path, *arguments: str, processes: int, code: str | None = None
) -> None:
    """Processes that must all exit with 0."""
    with Started(config, folder / "forked", processes, *arguments, code=code, **surroundings) as started:
        assert started.codes() == [0] * processes, [started.stderr(rank)[-4000:] for rank in range(processes)]


def needs_deepspeed():
    """Skip where it cannot run."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install -e '.[deepspeed]'")


WITH_VLLM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import pytest
from tests.vllm_doubles import install_vllm
from querylect.cli import main
with pytest.MonkeyPatch.context() as patch:
    install_vllm(patch)
    main(sys.argv[1:])
"""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("stage", "changes"), [(2, FULL), (3, {})], ids=["zero-2 full", "zero-3 lora"])
def test_vllm_samples_from_the_weights_that_zero_has_just_trained(settings, tmp_path, stage, changes):
    """At such learning rates weights of the step before would show: only those of now give a ratio of 1."""
    needs_deepspeed()
    sampled = {"rollout.engine": "vllm", "rollout.vllm.enable_sleep_mode": True}
    config = change(settings, **sampled, **{"train.steps": 3, "train.learning_rate": 0.05, **changes})
    fork_zero(stage, config, tmp_path, code=WITH_VLLM)
    assert_sampled_from_the_newest_weights(tmp_path / "runs" / "run")


def assert_sampled_from_the_newest_weights(folder: Path) -> None:
    """By the log-probabilities of the sampler and of the trainer, of steps that changed weights."""
    taught = [line for line in records(folder / "metrics.jsonl") if line["grad_norm"] > 0]
    assert len(taught) >= 2
    for line in taught:
        for bound in ("min", "max"):
            assert line[f"sampling/importance_sampling_ratio/{bound}"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("stage", "processes", "changes"),
    [
        (2, 2, FULL),
        (3, 4, {"train.gradient_checkpointing": True}),
        (3, 2, {**FULL, "train.max_tokens_per_micro_batch": 100}),
    ],
    ids=["zero-2 full", "zero-3 lora in four", "zero-3 full split"],
)
def test_zero_trains_what_one_process_trains_and_resumes(settings, tmp_path, stage, processes, changes):
    """Two steps, the second after a resume: samples as of the whole weights, and the weights themselves."""
    needs_deepspeed()
    common = {"train.questions_per_step": processes, "train.save_steps": 1, "train.steps": 1, **changes}
    split = change(settings, output=str(tmp_path / "split"), **common)
    if stage == 2:
        launch_zero(stage, split, tmp_path)
    else:
        fork_zero(stage, split, tmp_path, processes=processes)
    fork_zero(stage, split, tmp_path, "--resume", "train.steps=2", processes=processes)
    several = tmp_path / "split" / "run"
    single = train(change(settings, output=str(tmp_path / "one"), **{**common, "train.steps": 2}))
    assert_same_training(several, single, processes, split.train.learning_rate)


def assert_same_training(several: Path, single: Path, processes: int, learning_rate: float) -> None:
    """The same trees, loss and gradient norm; weights to the rounding that Adam's first steps divide by the size of a
    gradient."""
    assert records(several / "rollouts.jsonl") == records(single / "rollouts.jsonl")
    assert_same_updates(records(several / "metrics.jsonl"), records(single / "metrics.jsonl"))
    single_weights, several_weights = weights_of(single), weights_of(several)
    assert single_weights.keys() == several_weights.keys()
    rounding = 1e-2 if processes == 2 else 5e-2
    for name, weights in single_weights.items():
        assert (weights - several_weights[name]).abs().max() < rounding * learning_rate, name


def test_a_checkpoint_of_another_launcher_is_refused(tmp_path, monkeypatch):
    """It lacks the optimizer that this launcher reads: going on would begin it anew without a word."""
    checkpoint = tmp_path / "checkpoints" / "checkpoint-3"
    (checkpoint / "global_step3").mkdir(parents=True)
    (checkpoint / "global_step3" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    for name in ("adapter_model.safetensors", "scheduler.pt", "rng_state_0.pth", "trainer_state.json"):
        (checkpoint / name).touch()
    with refused(CheckpointError, checkpoint, OPTIMIZER_PARTS, "DeepSpeed"):
        RunFolder(tmp_path).newest_checkpoint()
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert RunFolder(tmp_path).newest_checkpoint() == checkpoint
    (checkpoint / "optimizer.pt").touch()
    with refused(CheckpointError, checkpoint, "optimizer.pt", "DeepSpeed"):
        RunFolder(tmp_path).newest_checkpoint()
