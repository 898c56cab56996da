"""A whole run: the files in its folder, refusals, and that a resumed run equals an uninterrupted one."""

import json
import shutil
from pathlib import Path

import pytest
from querylect.errors import CheckpointError, ConfigError, ModelError
from querylect.rollouts.checkpoints import find_checkpoint
from querylect.train.run import train

from ..lessons import ANSWER_TOKENS, change, lesson_settings, records, stopped_copy, without_seconds
from ..raising import refused

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def straight(tmp_path_factory, lessons, lesson_url, speaking):
    """A run of five steps that nothing interrupted, with its settings. Others resume copies of it."""
    config = lesson_settings(lessons, lesson_url, speaking, tmp_path_factory.mktemp("straight"))
    config = change(config, **{"train.steps": 5, "train.save_steps": 1, "train.keep_checkpoints": 9})
    return config, train(config)


def copy_of(straight, tmp_path, upto):
    """The settings and the folder of the run as it was after step `upto`, its log running ahead of its checkpoint."""
    return stopped_copy(*straight, tmp_path / "copy", upto)


def test_a_run_folder_is_complete(straight):
    config, folder = straight
    assert sorted(path.name for path in folder.iterdir()) == [
        "base.json", "checkpoints", "config.yaml", "environment.json", "final",
        "metrics.jsonl", "provenance.json", "rollouts.jsonl", "run.json",
    ]  # fmt: skip
    metrics = records(folder / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5]
    assert sum(line["grad_norm"] > 0 for line in metrics) >= 3, "the run has something to learn from"
    assert all(0 < line["tokens/packed"] < line["tokens/flat"] for line in metrics if line["grad_norm"])
    assert metrics[0]["completion_tokens/turn1"] <= config.rollout.max_new_tokens
    assert metrics[0]["rewrite_tokens/turn1"] == ANSWER_TOKENS - 3
    served = json.loads((folder / "environment.json").read_text())
    assert served["corpus_size"] == 5
    assert len(served["index_hash"]) >= 32
    (start,) = json.loads((folder / "provenance.json").read_text())["starts"]
    assert start["environment"]["index_hash"] == served["index_hash"]
    trees = records(folder / "rollouts.jsonl")
    assert [tree["step"] for tree in trees] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    for tree in trees:
        assert [len(turn["children"]) for turn in tree["turns"]] == [2, 2]
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == [
        f"checkpoint-{step}" for step in range(1, 6)
    ]


def test_metrics_are_the_means_of_the_logged_rollouts(straight):
    folder = straight[1]
    rollouts = records(folder / "rollouts.jsonl")
    for line in records(folder / "metrics.jsonl"):
        roots = [turn for tree in rollouts if tree["step"] == line["step"] for turn in tree["turns"]]
        leaves = [child for turn in roots for child in turn["children"]]
        for number, turns in ((1, roots), (2, leaves)):
            mean = sum(turn["reward"] for turn in turns) / len(turns)
            assert line[f"reward/turn{number}"] == pytest.approx(mean, rel=1e-5)
            for name, extreme in (("reward_min", min), ("reward_max", max)):
                assert line[f"{name}/turn{number}"] == pytest.approx(
                    extreme(turn["reward"] for turn in turns), rel=1e-5
                )
            valid_share = sum(not turn["failure"] for turn in turns) / len(turns)
            assert line[f"format/turn{number}"] == pytest.approx(valid_share, rel=1e-5)
            assert line[f"failed_search/turn{number}"] == 0
        sampled_tokens = 4 * line["completion_tokens/turn1"] + 8 * line["completion_tokens/turn2"]
        assert line["tokens/sampled"] == pytest.approx(sampled_tokens, rel=1e-5), "a shared first turn is sampled once"
        assert line["throughput/tokens"] * line["seconds/step"] == pytest.approx(sampled_tokens, rel=1e-4)
        assert line["throughput/rollouts"] * line["seconds/step"] == pytest.approx(len(leaves), rel=1e-4)
        assert line["searches"] == sum(not turn["failure"] for turn in [*roots, *leaves])
        assert line["sampling/importance_sampling_ratio/max"] == pytest.approx(1, abs=1e-4), "it samples itself"
        assert line["sampling/kl"] < 1e-8
        assert line["sampling/clipped"] == 0


def test_training_changed_the_policy_and_the_result_loads(straight):
    import torch
    from querylect.rollouts.policy import load_policy

    config, folder = straight
    assert find_checkpoint(folder) == folder / "final"
    untrained, _ = load_policy(config.policy)
    trained, _ = load_policy(config.policy, find_checkpoint(folder))
    last, _ = load_policy(config.policy, folder / "checkpoints" / "checkpoint-5")
    changed = [
        name
        for (name, before), after in zip(untrained.named_parameters(), trained.parameters(), strict=True)
        if not torch.equal(before, after)
    ]
    assert any("o_proj" in name for name in changed)
    for final_weight, last_weight in zip(trained.parameters(), last.parameters(), strict=True):
        assert torch.equal(final_weight, last_weight)


def test_a_resumed_run_is_the_run_that_was_not_stopped(straight, tmp_path):
    """Same questions, samples, losses and weights. The next test goes on after step 2, which ends a pass."""
    import torch
    from safetensors.torch import load_file

    config, copy = copy_of(straight, tmp_path, 3)
    assert train(config, resume=True) == copy
    assert without_seconds(copy / "metrics.jsonl") == without_seconds(straight[1] / "metrics.jsonl")
    assert records(copy / "rollouts.jsonl") == records(straight[1] / "rollouts.jsonl")
    weights = Path("final") / "adapter_model.safetensors"
    resumed_weights, straight_weights = load_file(copy / weights), load_file(straight[1] / weights)
    assert resumed_weights.keys() == straight_weights.keys()
    assert all(torch.equal(resumed_weights[name], straight_weights[name]) for name in resumed_weights)


def test_an_unpackable_policy_is_refused_before_a_folder_or_trained_flat(settings, tmp_path):
    """Experts that are balanced by a loss over rows: sampled with shared prefixes, trained in rows of their own. A
    small learning rate is not logged as 0."""
    from ..tiny import save_tiny

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    folder = save_tiny(tmp_path / "experts", "qwen3_moe", **experts)
    config = change(settings, **{"policy.model": str(folder), "policy.lora": None, "train.steps": 1})
    with refused(ModelError, "router_aux_loss_coef 0.001", "train.packing"):
        train(config)
    assert not (config.run_folder / "config.yaml").exists()
    run = train(change(config, **{"train.packing": False, "train.beta": 0.01, "train.learning_rate": 2.5e-7}))
    (line,) = records(run / "metrics.jsonl")
    assert line.get("tokens/packed", 0) == 0
    assert line["learning_rate"] == 2.5e-7


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"rollout.branching": [1, 1]}, ["rollout.branching [1, 1]"]),
        ({"train.questions_per_step": 3, "train.questions_per_micro_batch": 2}, ["train.questions_per_step 3"]),
        ({"train.questions_per_step": 6}, ["5 training questions", "questions_per_step is 6"]),
        ({"rollout.max_prompt_tokens": 16}, ["rollout.max_prompt_tokens is 16", 22]),
    ],
)
def test_settings_that_cannot_be_trained_are_refused_before_a_folder_is_made(settings, changes, facts):
    config = change(settings, **changes)
    with refused(ConfigError, *facts):
        train(config)
    assert not (config.run_folder / "config.yaml").exists()


def test_a_changed_setting_is_named_and_refused(straight, tmp_path):
    config, _ = copy_of(straight, tmp_path, 1)
    changed = change(config, **{"train.learning_rate": 0.5, "rollout.temperature": 0.3, "train.save_steps": 7})
    changes = "rollout.temperature: 1.0 → 0.3; train.learning_rate: 0.01 → 0.5"
    with refused(CheckpointError, changes) as error:
        train(changed, resume=True)
    assert "save_steps" not in str(error.value), "what does not change the outcome may differ"


def test_base_weights_that_were_swapped_under_an_adapter_are_refused(straight, tmp_path, speaking):
    """Same name, same shapes, other values: the adapter would go on over weights that it was not trained on."""
    from safetensors.torch import load_file, save_file

    config, copy = copy_of(straight, tmp_path, 2)
    model = shutil.copytree(speaking, tmp_path / "model")
    config = change(config, **{"policy.model": str(model)})
    (copy / "config.yaml").write_text(
        (copy / "config.yaml").read_text().replace(str(speaking), str(model)), encoding="utf-8"
    )
    weights = load_file(model / "model.safetensors")
    changed = {name: tensor * 1.02 if "q_proj" in name else tensor for name, tensor in weights.items()}
    save_file(changed, model / "model.safetensors", metadata={"format": "pt"})
    with refused(CheckpointError, repr(str(model))):
        train(config, resume=True)
