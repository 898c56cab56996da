"""The collapse guard on logs made by hand, and on a real run that it ends."""

import logging
import math

import pytest
import torch
from querylect.configs.schema import RolloutConfig
from querylect.configs.training import GuardConfig
from querylect.errors import CollapseError
from querylect.train.guard import CollapseGuard, best_known, logp_bound
from querylect.train.run import train
from querylect.train.run_folder import RunFolder

from ..lessons import change, records, without_seconds
from ..raising import refused


def log(**figures):
    """Records of steps 1, 2, …: figures by name, each a list by step, or one number for all."""
    steps = max(len(values) for values in figures.values() if isinstance(values, list))
    return [
        {"step": step + 1}
        | {name: values[step] if isinstance(values, list) else values for name, values in figures.items()}
        for step in range(steps)
    ]


def signs(rows, logp=None, learning_rate=1e-6, **config):
    guard = CollapseGuard(GuardConfig(window=2, patience=3, **config), logp, learning_rate)
    return guard, [(row["step"], sign.name) for row in rows for sign in guard.look(row)]


def healthy(steps):
    return {
        f"{name}/turn{turn}": [value] * steps
        for name, value in (("reward", 0.4), ("entropy", 1.0), ("copy", 0.2), ("zero_variance", 0.5))
        for turn in (1, 2)
    }


def test_a_healthy_run_shows_no_sign():
    guard, reported = signs(log(**healthy(30)))
    assert reported == []
    assert guard.collapsed is None


def test_a_drop_is_measured_against_the_best_window_of_the_last_turn():
    """Windows of two: .3 .5 .5 .35 .2 .2; half of .5 is .25, so the fifth window is below it."""
    rewards = [0.2, 0.4, 0.6, 0.4, 0.3, 0.1, 0.3]
    guard, reported = signs(log(**{"reward/turn1": 0.9, "reward/turn2": rewards}))
    assert reported == [(6, "reward_drop")]
    guard.look({"step": 8, "reward/turn1": 0.9, "reward/turn2": 0.1})
    assert guard.collapsed is None, "two steps after it was told"
    guard.look({"step": 9, "reward/turn1": 0.9, "reward/turn2": 0.1})
    assert guard.collapsed.finding == (
        "the last turn's mean reward over the last 2 steps is 0.100; it was 0.500 at step 3 (limit: a loss of 50%)"
    )


def test_the_limit_is_a_share_that_may_be_lost():
    """Of .5 a fifth may be lost, but not .12: the limit is .4."""
    assert signs(log(**{"reward/turn1": [0.5, 0.5, 0.4, 0.4]}), reward_drop=0.2)[1] == []
    assert signs(log(**{"reward/turn1": [0.5, 0.5, 0.4, 0.36]}), reward_drop=0.2)[1] == [(4, "reward_drop")]


def test_questions_that_stop_early_are_no_drop_of_those_that_go_on():
    """More and more easy questions stop after the first turn, until all do; at the end of all paths nothing is lost."""
    rows = log(**{"reward/turn1": 0.7, "reward/turn2": [0.6] * 4 + [0.2] * 4, "final_reward": [0.6] * 4 + [0.7] * 4})
    rows += [{"step": step, "reward/turn1": 0.7, "final_reward": 0.7} for step in (9, 10)]
    assert signs(rows)[1] == []
    lost = [{**row, "final_reward": 0.6 if row["step"] < 5 else 0.2} for row in rows]
    assert signs(lost)[1] == [(6, "reward_drop")]


def test_a_sign_that_goes_away_is_forgiven_and_told_again():
    rewards = [0.4, 0.4, 0.1, 0.1, 0.4, 0.4, 0.4, 0.1, 0.1, 0.1]
    guard, reported = signs(log(**{"reward/turn1": rewards}))
    assert reported == [(4, "reward_drop"), (9, "reward_drop")]
    assert guard.collapsed is None


@pytest.mark.parametrize(
    ("name", "bad", "sign"),
    [("entropy", 0.001, "entropy_floor"), ("copy", 0.99, "copy_share"), ("zero_variance", 1.0, "zero_variance")],
)
def test_the_other_signs_need_every_turn(name, bad, sign):
    single, both = healthy(8), healthy(8)
    single[f"{name}/turn1"] = both[f"{name}/turn1"] = both[f"{name}/turn2"] = [bad] * 8
    assert signs(log(**single))[1] == []
    guard, reported = signs(log(**both))
    assert reported == [(2, sign)]
    assert guard.collapsed.name == sign
    assert signs(log(**both), **{sign: None})[1] == []
    assert signs(log(**both), action="off")[1] == []
    warned, reported = signs(log(**both), action="warn")
    assert reported == [(2, sign)]
    assert warned.collapsed is None


def test_steps_that_change_almost_no_weight_stop_the_run():
    moving = {"grad_norm": 0.3, "learning_rate": 1e-6, "changed_weights": [0.007] * 8}
    guard, reported = signs(log(**healthy(8), **moving))
    assert reported == [(2, "changed_weights")]
    assert guard.collapsed.meaning == "the weights do not move"
    assert "changes 0.70% of the trained weights over the last 2 steps (limit: 10%)" in guard.collapsed.finding
    assert "policy.dtype=auto" in guard.collapsed.remedy
    assert signs(log(**healthy(8), **moving), changed_weights=None)[1] == []
    assert signs(log(**healthy(8), **moving), changed_weights=0.005)[1] == []


@pytest.mark.parametrize(
    "reason",
    [{"learning_rate": 0.0}, {"learning_rate": 9e-9}, {"grad_norm": 0.0}],
    ids=["no learning rate", "the end of a schedule", "no signal"],
)
def test_a_step_that_was_not_to_move_weights_is_no_sign(reason):
    still = {"grad_norm": 0.3, "learning_rate": 1e-6, "changed_weights": [0.0] * 8}
    assert signs(log(**healthy(8), **{**still, **reason}))[1] == []


def test_a_sampler_that_is_not_the_policy_stops_the_run():
    differences = {"sampling/sampling_logp_difference/mean": [0.2] * 8}
    guard, reported = signs(log(**healthy(8), **differences), logp=0.15)
    assert reported == [(2, "logp_difference")]
    assert guard.collapsed.meaning == "the sampler is not the policy that is trained"
    assert "differs by 0.2 nats on average over the last 2 steps" in guard.collapsed.finding
    assert "rollout.engine=transformers" in guard.collapsed.remedy
    assert signs(log(**healthy(8), **differences), logp=0.25)[1] == []
    assert signs(log(**healthy(8), **differences), logp=None)[1] == []
    assert signs(log(**{"sampling/sampling_logp_difference/mean": [math.nan] * 8}), logp=0.15)[1] != []


def test_the_bound_on_the_mismatch_follows_the_type_and_top_p():
    rollout, nucleus = RolloutConfig(), RolloutConfig(top_p=0.9)
    assert logp_bound("auto", rollout, torch.float32) == 0.01
    assert logp_bound("auto", rollout, torch.bfloat16) == 0.15
    assert logp_bound("auto", nucleus, torch.float32) == pytest.approx(0.01 + math.log(1 / 0.9))
    assert logp_bound(0.5, nucleus, torch.bfloat16) == 0.5
    assert logp_bound(None, rollout, torch.bfloat16) is None


def test_steps_without_a_figure_are_left_out():
    rows = log(**{"reward/turn1": [0.4] * 6})
    del rows[2]["reward/turn1"], rows[3]["reward/turn1"]
    assert signs(rows)[1] == []


def test_the_best_checkpoint_is_that_of_validation_or_of_the_best_rewards(tmp_path):
    rows = log(**{"reward/turn1": 0.9, "reward/turn2": [0.1, 0.5, 0.7, 0.3, 0.2, 0.1]})
    left = [tmp_path / f"checkpoint-{step}" for step in (2, 4, 6)]
    assert f"(0.500) is {left[1]}" in best_known(left, tmp_path / "best", rows, window=2)
    assert "no checkpoint is left" in best_known([], tmp_path / "best", rows, window=2)
    (tmp_path / "best").mkdir()
    assert best_known(left, tmp_path / "best", rows, window=2) == f"the best by validation is {tmp_path / 'best'}"


def test_a_collapsed_run_names_its_best_checkpoint_and_a_resumed_one_stops_alike(settings, caplog):
    """The limit of entropy is so high that every step is a collapse: seen at step 2, still there at step 4."""
    guard = {"train.guard.window": 2, "train.guard.patience": 2, "train.guard.entropy_floor": 50.0}
    config = change(settings, **guard, **{"train.steps": 8, "train.save_steps": 3})
    with caplog.at_level(logging.WARNING), pytest.raises(CollapseError) as stopped:
        train(config)
    folder = RunFolder(settings_path(config))
    assert "step 2: no turn's entropy over the last 2 steps" in caplog.text
    assert "the policy collapsed and the run stops at step 4: no turn's entropy" in str(stopped.value)
    assert str(folder.checkpoints / "checkpoint-") in str(stopped.value)
    assert [row["step"] for row in records(folder.metrics)] == [1, 2, 3, 4]
    assert (folder.checkpoints / "checkpoint-4").exists()
    assert not folder.final.exists()
    metrics = without_seconds(folder.metrics)

    (folder.checkpoints / "checkpoint-4").rename(folder.path / "away")
    with refused(CollapseError, "step 4"):
        train(config, resume=True)
    assert without_seconds(folder.metrics) == metrics

    train(change(config, **{"train.guard.action": "warn", "train.steps": 5}), resume=True)
    assert folder.final.exists()


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"train.guard.changed_weights": 1.0}, "policy.dtype=auto"),
        ({"train.guard.logp_difference": 1e-12}, "rollout.engine=transformers"),
    ],
)
def test_a_run_with_wrong_arithmetic_is_stopped_with_what_to_do(settings, changes, remedy):
    """The entropy bonus gives every step a gradient."""
    guard = {"train.guard.window": 2, "train.guard.patience": 2, "train.entropy_coef": 0.01, "train.steps": 8}
    with refused(CollapseError, "step 4", remedy):
        train(change(settings, **guard, **{"policy.lora": None, "train.learning_rate": 1e-4}, **changes))


def settings_path(config):
    from pathlib import Path

    return Path(config.output) / config.name
