"""Dynamic sampling: which trees are replaced, by which, for how many rounds, and exact resumption."""

from pathlib import Path

import pytest
from querylect.configs.schema import RunConfig
from querylect.data.types import Question
from querylect.train.processes import Processes
from querylect.train.run import train
from querylect.train.step_trees import resample

from ..lessons import change, records, stopped_copy, without_seconds
from .test_credit import node, tree

pytestmark = [pytest.mark.model, pytest.mark.slow]

QUESTIONS = {name: Question(name, name) for name in "abcdefgh"}


def test_an_outage_is_not_answered_with_more_requests():
    lost = tree(node(0.3, None, 0.5), node(None, 0.5, 0.5), name="a")
    config = change(RunConfig(), **{"train.resample_rounds": 2})
    trees, _, metrics = resample(config, [lost], QUESTIONS, lambda _: pytest.fail("asked again"), 0, Processes())
    assert (trees, metrics["resample/rounds"]) == ([lost], 0)


def finished_again(config, folder, upto):
    """Resume a copy of a run that was stopped after step `upto`."""
    config, copy = stopped_copy(config, folder, folder.parent / f"copy{upto}", upto)
    train(config, resume=True)
    return copy


def same_weights(first_folder, second_folder):
    import torch
    from safetensors.torch import load_file

    weights = Path("final") / "adapter_model.safetensors"
    first, second = load_file(first_folder / weights), load_file(second_folder / weights)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_that_resamples_counts_it_and_resumes_exactly(settings):
    """[2] turns of one question tie often: some steps ask again, and no step more than two rounds."""
    changes = {"rollout.branching": [2], "train.resample_rounds": 2, "train.save_steps": 1, "train.keep_checkpoints": 9}
    config = change(settings, **changes)
    folder = train(config)
    lines = without_seconds(folder / "metrics.jsonl")
    assert any(line["resample/rounds"] for line in lines)
    assert all(line["resample/rounds"] <= 2 and line["resample/asked"] <= 5 for line in lines)
    for line in lines:
        silent, replaced = round(line["resample/silent_share"] * line["resample/asked"]), line["resample/asked"] - 2
        assert silent - replaced == 2 * line["zero_variance/turn1"], "every replaced tree had no signal"
    plain = without_seconds(
        train(change(config, **{"name": "plain", "train.resample_rounds": 0, "train.steps": 1})) / "metrics.jsonl"
    )
    assert lines[0]["resample/rounds"] > 0, "the first steps of both sample from the same weights"
    assert lines[0]["zero_variance/turn1"] <= plain[0]["zero_variance/turn1"], "what has signal stays"
    assert not any(key.startswith("resample") for key in plain[0])
    copy = finished_again(config, folder, 2)
    assert without_seconds(copy / "metrics.jsonl") == lines
    assert records(copy / "rollouts.jsonl") == records(folder / "rollouts.jsonl")
    assert same_weights(folder, copy)


def test_several_steps_on_one_rollout_are_saved_after_the_last_of_them(settings):
    """Two steps a rollout: the second has a probability ratio to clip, and no checkpoint is between them."""
    changes = {"train.num_iterations": 2, "train.epsilon": 0.01, "train.steps": 6, "train.beta": 0.01}
    config = change(settings, **changes, **{"train.save_steps": 1, "train.keep_checkpoints": 9})
    folder = train(config)
    lines = without_seconds(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    clipped = [line["clip_ratio/region_mean"] for line in lines]
    assert clipped[::2] == [0, 0, 0], "a first step is on policy"
    assert max(clipped[1::2]) > 0
    assert lines[0]["reward/turn1"] == lines[1]["reward/turn1"]
    trees = records(folder / "rollouts.jsonl")
    assert [record["step"] for record in trees] == [1, 1, 3, 3, 5, 5], "a rollout is logged once"
    assert [line["tokens/sampled"] > 0 for line in lines] == [True, False] * 3, "and counted once"
    assert len({record["question_id"] for record in trees[:4]}) == 4, "every rollout asks the next questions"
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [f"checkpoint-{n}" for n in (2, 4, 6)]
    copy = finished_again(config, folder, 2)
    assert without_seconds(copy / "metrics.jsonl") == lines
    assert records(copy / "rollouts.jsonl") == trees
    assert same_weights(folder, copy)
