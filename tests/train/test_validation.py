"""Validation inside a run: its questions, the best checkpoint, and that training does not change."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Question, Split
from querylect.errors import CheckpointError, StoppedError
from querylect.rollouts.checkpoints import UsedTurn, find_checkpoint, used_turn, winning_turn
from querylect.train.run import train
from querylect.train.run_folder import RunFolder

from ..lessons import change, records, without_seconds
from ..raising import refused

pytestmark = pytest.mark.model


def environment(lessons, folder, validation, relevant="aspirin"):
    """An environment with a validation split of one relevant document, its index used as it is."""
    dataset = load_beir(lessons.dataset.path)
    questions = [Question(f"v{number}", text) for number, text in enumerate(validation)]
    split = Split(questions, {question.id: {relevant: 1} for question in questions})
    save_beir(replace(dataset, splits={**dataset.splits, "validation": split}), folder)
    changed = {"dataset": DatasetConfig(path=str(folder))}
    return EnvironmentConfig.model_validate({**lessons.model_dump(), **{k: v.model_dump() for k, v in changed.items()}})


@pytest.fixture
def served(lessons, tmp_path, run_app):
    """A function: validation questions in, `with` it the URL of the environment that has them."""
    from querylect.envs.environment import Environment
    from querylect.envs.server.app import create_app

    def serve(validation):
        config = environment(lessons, tmp_path / "validated", validation)
        return run_app(create_app(Environment.open(config)))

    return serve


ASKED = ["a sore head", "no sugar please", "pain in the temples", "what helps my brow", "my skull aches"]


def test_validation_is_logged_keeps_the_best_and_does_not_change_training(settings, served, monkeypatch):
    """Without it and with it, training logs the same figures; the best is the first of the highest values."""
    plain = without_seconds(train(settings) / "metrics.jsonl")
    with served(ASKED) as url:
        config = change(
            settings,
            name="validated",
            **{"client.urls": [url], "train.validate_steps": 2, "train.validation_questions": 3},
            **{"train.keep_checkpoints": 1, "train.save_steps": 1},
        )
        folder = RunFolder(train(config))
        logged = records(folder.validation)
        assert without_seconds(folder.metrics) == plain
        assert [row["step"] for row in logged] == [0, 2, 4]
        assert all(row["questions"] == 3 and row["failed_searches"] == 0 for row in logged)
        assert set(logged[0]) == {
            "step", "questions", "failed_searches", "seconds", "tokens/sampled", "searches",
            *(f"{name}/turn{turn}" for name in ("reward", "ndcg", "format") for turn in (1, 2)), "turn",
        }  # fmt: skip
        best_record = json.loads((folder.best / "best.json").read_text())
        best = max(logged, key=lambda row: (max(row["ndcg/turn1"], row["ndcg/turn2"]), -row["step"]))
        assert best_record == {name: value for name, value in best.items() if name != "seconds"}
        assert all(row["turn"] == 1 + (row["ndcg/turn2"] > row["ndcg/turn1"]) for row in logged)
        for name, row in (("best", best_record), ("final", logged[-1]), ("checkpoint-4", logged[-1])):
            used = used_turn(
                config.rollout, config.reward, config.train, folder.path, find_checkpoint(folder.path, name)
            )
            assert (used.turn, used.reason[:8]) == (row["turn"], "best on "), name
        assert find_checkpoint(folder.path) == folder.best
        assert find_checkpoint(folder.path, "final") == folder.final
        with refused(CheckpointError, "'checkpoint-1'", ": best, checkpoint-4, final"):
            find_checkpoint(folder.path, "checkpoint-1")

        stop_in_validation(monkeypatch, at=2)
        again = change(config, name="again")
        with refused(StoppedError, "checkpoint-3"):  # after the step that follows
            train(again)
        monkeypatch.undo()
        resumed = RunFolder(train(again, resume=True))
    assert without_seconds(resumed.validation) == without_seconds(folder.validation)
    assert without_seconds(resumed.metrics) == plain
    assert json.loads((resumed.best / "best.json").read_text())["step"] == best_record["step"]
    weights = Path("best") / "adapter_model.safetensors"
    assert (folder.path / weights).read_bytes() == (resumed.path / weights).read_bytes()


def stop_in_validation(monkeypatch, at):
    """SIGTERM while the validation after step `at` is answered, with hours of grace: the step is whole, so it stops."""
    import os
    import signal

    from querylect.train import validation

    original = validation.Validator._measure

    def interrupted(self, step):
        if step == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, step)

    monkeypatch.setattr(validation.Validator, "_measure", interrupted)


def test_the_best_policy_is_replaced_by_a_better_one_only_and_never_by_a_guess(tmp_path):
    from types import SimpleNamespace

    from querylect.configs.schema import RewardConfig, RolloutConfig
    from querylect.rollouts.checkpoints import best_record
    from querylect.train.processes import Processes
    from querylect.train.validation import Validator

    folder = RunFolder(tmp_path)
    saved = []
    conversation = SimpleNamespace(rollout=RolloutConfig())
    tree_sampler = SimpleNamespace(conversation=conversation, reward=RewardConfig())
    trainer = SimpleNamespace(save_policy=saved.append)
    validator = SimpleNamespace(tree_sampler=tree_sampler, folder=folder, trainer=trainer, processes=Processes())
    for step, value, failed_searches in ((0, 0.3, 0), (5, 0.5, 0), (10, 0.5, 0), (15, 0.9, 1), (20, 0.4, 0)):
        turns = {"ndcg/turn1": value, "ndcg/turn2": 0.45}  # what the second turn reaches decides only at first
        Validator._keep_best(validator, step, {"step": step, **turns, "failed_searches": failed_searches})
    assert len(saved) == 2
    assert best_record(folder.path)["step"] == 5


def test_the_turn_that_won_is_used_and_a_tie_goes_to_the_earlier(tmp_path):
    from querylect.configs.schema import RunConfig

    config = RunConfig()
    for name in ("final", "checkpoints/checkpoint-8", "checkpoints/checkpoint-4", "best"):
        (tmp_path / name).mkdir(parents=True)
    rows = [{"step": 4, "ndcg/turn1": 0.25, "ndcg/turn2": 0.3}, {"step": 8, "ndcg/turn1": 0.3, "ndcg/turn2": 0.3}]

    def used(name):
        return used_turn(config.rollout, config.reward, config.train, tmp_path, tmp_path / name)

    last = UsedTurn(2, "final was not validated, so the last turn")
    assert used("final") == last
    (tmp_path / "metrics.jsonl").write_text('{"step": 7}\n{"step": 8}\n')
    (tmp_path / "validation.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert used("final") == last, "what is known of step 4 is not known of the last one"
    (tmp_path / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9, ')
    assert used("final").turn == used("checkpoints/checkpoint-8").turn == 1
    assert used("checkpoints/checkpoint-4").turn == 2
    assert "ndcg@10 of turn 1 0.300, turn 2 0.300" in used("final").reason
    (tmp_path / "best" / "best.json").write_text(json.dumps(rows[0]))
    assert used("best").turn == 2
    single = change(config, **{"rollout.branching": [16]})
    assert used_turn(single.rollout, single.reward, single.train, tmp_path, tmp_path / "final").turn == 1
    assert used_turn(config.rollout, config.reward, config.train, None, None).turn == 1
    assert winning_turn({"step": 1}, "ndcg@10", 2) is None
