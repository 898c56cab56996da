"""Several processes: the same trees, weights and figures as one, one service, one folder, one end."""

import inspect
import pickle
import signal
from pathlib import Path

import psutil
import pytest
from querylect.train.run import train

from ..forked import Forked
from ..lessons import ENDLESS, change, records, without_seconds
from ..several import FSDP2, Started, launcher_variables
from .test_gradient import brute_force_gradients, made_up_rewards, relative_difference

pytestmark = [pytest.mark.server, pytest.mark.slow]

PER_MICRO_BATCH = ("entropy", "kl", "clip_ratio", "tokens/packed", "tokens/flat")
"""Means over micro-batches, which other processes hold, and computed tokens: a process without signal has one."""


def weights_of(folder):
    from safetensors.torch import load_file

    (file,) = (folder / "final").glob("*.safetensors")
    return load_file(file)


def assert_same_updates(several: list[dict], single: list[dict]) -> None:
    """Loss and gradient norm to 1e-5 in the first step, and to 1e-4 in later ones, which begin with weights that differ
    by rounding: Adam divides it by the size of a gradient. Where the advantages of all tokens add up to 0, so does the
    loss, but for rounding (6e-9)."""
    assert any(line["grad_norm"] > 0.01 and abs(line["loss"]) > 1e-3 for line in single), "it has something to learn"
    for actual, expected in zip(several, single, strict=True):
        for name in ("loss", "grad_norm"):
            tolerance = 1e-5 if expected["step"] == 1 else 1e-4
            assert actual[name] == pytest.approx(expected[name], rel=tolerance, abs=3e-8), (expected["step"], name)


def assert_same_run(pair: Path, single: Path, learning_rate: float) -> None:
    """The same trees; figures and weights differ by rounding, which Adam turns into a small part of a step."""
    assert records(pair / "rollouts.jsonl") == records(single / "rollouts.jsonl")
    pair_metrics, single_metrics = (without_seconds(folder / "metrics.jsonl") for folder in (pair, single))
    assert_same_updates(pair_metrics, single_metrics)
    for actual, expected in zip(pair_metrics, single_metrics, strict=True):
        assert actual.keys() == expected.keys()
        for name in actual:
            if not name.startswith(PER_MICRO_BATCH):
                rounding = 1e-4 if name.startswith("sampling/") else 1e-6
                if name == "changed_weights":  # a gradient that is 0 but for rounding may move its weight or not
                    rounding = 1e-2
                assert actual[name] == pytest.approx(expected[name], rel=2e-3, abs=rounding), name
    single_weights, pair_weights = weights_of(single), weights_of(pair)
    assert single_weights.keys() == pair_weights.keys()
    for name, weights in single_weights.items():
        assert (weights - pair_weights[name]).abs().max() < 5e-2 * learning_rate, name


@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {}),
        (
            2,
            {
                "train.packing": False,
                "policy.lora": None,
                "train.learning_rate": 1e-3,
                "train.scale": "batch",
                "train.gradient_checkpointing": True,
                "train.max_tokens_per_micro_batch": 300,
                "train.resample_rounds": 1,
            },
        ),
        (4, {"policy.lora": None, "train.learning_rate": 1e-3}),
        (2, {"train.staleness": 1}),
    ],
    ids=["lora", "full flat batch-scaled resampled split", "full in four", "sampled ahead"],
)
def test_several_processes_are_one_process(settings, tmp_path, processes, changes):
    """1×4 and 2×2 or 4×1 questions: the same samples, rewards and advantages, and the same weights; four processes for
    two steps."""
    steps = 3 if processes == 2 else 2
    config = change(settings, **{"train.questions_per_step": 4, "train.steps": steps, **changes})
    single = train(config)
    assert sum(line["grad_norm"] > 0 for line in records(single / "metrics.jsonl")) >= 2, "it has something to learn"
    several = change(config, output=str(tmp_path / "both"))
    ranks = range(processes)
    with Started(several, tmp_path / "several", processes) as started:
        assert started.codes() == [0] * processes, [started.stderr(rank)[-4000:] for rank in ranks]
    folder = tmp_path / "both" / "run"
    assert_same_run(folder, single, config.train.learning_rate)
    stdout_lines = [(tmp_path / "several" / f"out-{rank}").read_text().splitlines() for rank in ranks]
    assert stdout_lines[0][-1] == str(folder), "importing DeepSpeed, if it is installed, writes to standard output"
    assert not any(str(folder) in lines for lines in stdout_lines[1:])


GRADIENTS = """
import os, pickle, sys
from querylect.cli import main
from querylect.rollouts.engines.base import stream
from querylect.train.step_trees import StepTrees
from querylect.train.trainer import TreeTrainer

grow, training_step = StepTrees._grow, TreeTrainer.training_step
trees = []

def grown(*arguments):
    trees[:] = made_up_rewards(grow(*arguments))
    return list(trees)

StepTrees._grow = grown
if "WRONG_RULE" in os.environ:  # tokens of this process alone as the normalizer
    from querylect.train import trainer as module
    rollout = module.Rollout

    def of_this_process(batches, tokens, *others):
        tokens = sum(len(node.completion_ids) for tree in trees for path in tree.paths() for node in path)
        return rollout(batches, float(tokens), *others)

    module.Rollout = of_this_process

def step(trainer, *batch):
    loss = training_step(trainer, *batch)
    if trainer.accelerator.sync_gradients:  # the last backward pass before the optimizer's step
        gradients = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
        with open(f"{sys.argv[2]}.{trainer.processes.rank}", "wb") as file:
            pickle.dump((trees, gradients), file)
    return loss

TreeTrainer.training_step = step
main(sys.argv[1:])
"""
"""Trains, and writes the trees and the gradients of the last step of every process beside its config."""


@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {"rollout.branching": [4, 4], "train.loss_type": "grpo"}),
        (2, {"rollout.branching": [2, 3, 2], "reward.turn_weights": [0.25, 0.5, 2.0], "train.scale": "batch"}),
        (2, {"rollout.branching": [16, 1], "train.credit": "trajectory"}),
        (4, {"rollout.branching": [4, 4], "train.scale": "batch"}),
        (2, {"rollout.branching": [4, 4], "WRONG_RULE": "normalizer"}),
    ],
    ids=["4x4 grpo", "2x3x2 batch-scaled", "16x1 trajectory", "four processes", "normalizer of one process"],
)
def test_the_gradient_of_several_processes_equals_brute_force(settings, tmp_path, processes, changes):
    """In each, after the backward passes of a step and before the optimizer; one tree a micro-batch. It notices a loss
    that each process divides by its own tokens."""
    from querylect.rollouts.policy import load_policy

    wrong = {name: value for name, value in changes.items() if name == "WRONG_RULE"}
    changes = {name: value for name, value in changes.items() if name not in wrong}
    config = change(settings, **changes, **{"policy.lora": None, "train.questions_per_step": 4, "train.steps": 1})
    code = inspect.getsource(made_up_rewards) + GRADIENTS
    with Started(config, tmp_path / "several", processes, code=code, **wrong) as started:
        assert started.codes() == [0] * processes, started.stderr(0) + started.stderr(1)
    ranks = range(processes)
    rank_results = [pickle.loads((tmp_path / "several" / f"run.yaml.{rank}").read_bytes()) for rank in ranks]
    assert [len(trees) for trees, _ in rank_results] == [4 // processes] * processes
    model, _ = load_policy(config.policy)
    expected = brute_force_gradients(model, [tree for trees, _ in rank_results for tree in trees], config)
    for _, gradients in rank_results:
        assert gradients.keys() == expected.keys()
        assert (relative_difference(gradients, expected) <= 1e-5) == (not wrong)


@pytest.mark.parametrize("splitting", [{}, pytest.param(FSDP2, marks=pytest.mark.slow)], ids=["ddp", "fsdp2"])
def test_a_signal_to_one_ends_all_and_another_number_of_processes_goes_on(settings, tmp_path, splitting):
    """SIGTERM to the second of two that share one local service; then one process continues their run."""
    endless = change(settings, **{"client.urls": "local", **ENDLESS, "output": str(tmp_path / "both")})
    folder = tmp_path / "both" / "run"
    with Started(endless, tmp_path / "two", 2, **splitting) as started:
        started.wait_for_step(folder / "metrics.jsonl", 2)
        children = [psutil.Process(process.pid).children() for process in started.processes]
        name = "querylect.envs.client.child_process"
        services = [sum(name in child.cmdline() for child in some) for some in children]
        started.processes[1].send_signal(signal.SIGTERM)
        assert started.codes() == [75, 75], started.stderr(0) + started.stderr(1)
    assert services == [1, 0]
    assert ["stopped: SIGTERM " in started.stderr(rank) for rank in (0, 1)] == [True, False]
    reached = len(records(folder / "metrics.jsonl"))
    checkpoint = folder / "checkpoints" / f"checkpoint-{reached}"
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    assert not (folder / "final").exists()
    train(change(endless, **{"client.urls": settings.client.urls, "train.steps": reached + 1}), resume=True)
    single = train(change(settings, **{"train.steps": reached + 1, "output": str(tmp_path / "one")}))
    rollouts = records(single / "rollouts.jsonl")
    assert records(folder / "rollouts.jsonl") == rollouts


COLLECTIVES = """
import signal, sys
from datetime import timedelta
from pathlib import Path
from querylect.errors import ModelError
from querylect.train.processes import launched

folder, case = Path(sys.argv[1]), sys.argv[2]
with launched() as me:
    assert me.on_main_process(lambda: me.rank) == 0
    with me.atomic_folder(folder / "place") as staging:
        (staging / str(me.rank)).write_text("x")
    assert sorted(path.name for path in (folder / "place").iterdir()) == ["0", "1"]
    me.set_timeout(timedelta(seconds=1))
    if case == "hung" and me.rank == 1:
        signal.pause()
    if case == "failed" and me.rank == 1:
        raise ModelError("overflow")
    me.all_gather(None)
"""


@pytest.mark.parametrize("case", ["hung", "failed"])
def test_no_process_waits_for_one_that_does_not_come(tmp_path, case):
    """An error is that of its process alone, and the others say in a sentence that it is gone. One that hangs ends the
    others after the time-out of a step."""
    running = [
        Forked([str(tmp_path), case], tmp_path / f"out-{rank}", tmp_path / f"err-{rank}", variables, code=COLLECTIVES)
        for rank, variables in enumerate(launcher_variables(2))
    ]
    try:
        codes = [running[0].wait(120), running[1].wait(120) if case == "failed" else None]
    finally:
        running[1].kill()
        running[1].wait(60)
    assert codes == [1, None if case == "hung" else 1]
    errors = [(tmp_path / f"err-{rank}").read_text() for rank in (0, 1)]
    assert ["overflow" in text for text in errors] == [False, case == "failed"]
    assert ("1000ms" in errors[0]) == (case == "hung"), errors[0]
    assert "QuerylectError: another process of the run has ended, or did not come in time" in errors[0]
