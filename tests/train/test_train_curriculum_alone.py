"""train.curriculum, on one environment: what is asked follows the success so far, and a resumed run is the run that was
not stopped."""

import json
from collections import Counter

import pytest
from querylect.configs.schema import RunConfig
from querylect.errors import CheckpointError, StorageError
from querylect.train.curriculum import Curriculum, Progress
from querylect.train.run import train

from ..lessons import ASKED, change, lesson_settings, records, stopped_copy, without_seconds
from ..raising import refused
from ..several import Started

SETTINGS = {"prefer": "hard", "floor": 0.05, "memory": 0.5}


@pytest.fixture(scope="module")
def straight(tmp_path_factory, lessons, lesson_url, speaking):
    """Eight steps of two questions that nothing interrupted: three passes over five questions."""
    config = lesson_settings(lessons, lesson_url, speaking, tmp_path_factory.mktemp("straight"))
    changes = {"train.curriculum": SETTINGS, "train.steps": 8, "train.save_steps": 1, "train.keep_checkpoints": 9}
    config = change(config, **changes)
    return config, train(config)


def question_ids(folder, step):
    return [record["question_id"] for record in records(folder / "rollouts.jsonl") if record["step"] == step]


def reached(folder, step):
    """Question id and mean nDCG@10 of the last turns of each tree of a step."""
    for record in records(folder / "rollouts.jsonl"):
        if record["step"] == step:
            leaves = [leaf for turn in record["turns"] for leaf in turn["children"]]
            yield record["question_id"], sum(leaf["metrics"]["ndcg@10"] for leaf in leaves) / len(leaves)


def test_a_step_asks_what_the_curriculum_draws_from_the_success_so_far(straight):
    config, folder = straight
    course = Curriculum({"": 1.0}, {"": list(ASKED)}, config.train.curriculum, config.seed)
    progress, passes = Progress(), Counter()
    for line in records(folder / "metrics.jsonl"):
        drawn, progress = course.draw(progress, line["step"], 2)
        assert sorted(question_ids(folder, line["step"])) == sorted(drawn)
        progress = course.learn(progress, list(reached(folder, line["step"])))
        passes.update(drawn)
        assert line["success"] == pytest.approx(progress.environments[""], rel=1e-4)
    assert len(passes) == 5
    assert progress.positions[""] > 16, "questions were passed over for what they reached before"
    saved = json.loads((folder / "checkpoints" / "checkpoint-8" / "curriculum.json").read_text())
    assert saved["questions"] == pytest.approx(dict(progress.questions), rel=1e-4)


def test_a_resumed_run_is_the_run_that_was_not_stopped(straight, tmp_path):
    config, copy = stopped_copy(*straight, tmp_path / "copy", 5)
    train(config, resume=True)
    assert without_seconds(copy / "metrics.jsonl") == without_seconds(straight[1] / "metrics.jsonl")
    assert records(copy / "rollouts.jsonl") == records(straight[1] / "rollouts.jsonl")
    last = [run_folder / "checkpoints" / "checkpoint-8" / "curriculum.json" for run_folder in (copy, straight[1])]
    assert last[0].read_bytes() == last[1].read_bytes()


def test_two_processes_draw_the_same(straight, tmp_path):
    config = change(straight[0], output=str(tmp_path / "both"), **{"train.steps": 3})
    with Started(config, tmp_path / "two", 2) as started:
        assert started.codes() == [0, 0], started.stderr(0) + started.stderr(1)
    for step in range(1, 4):
        assert question_ids(tmp_path / "both" / "run", step) == question_ids(straight[1], step)


def test_a_checkpoint_that_lost_the_curriculum_is_refused(straight, tmp_path):
    config, copy = stopped_copy(*straight, tmp_path / "copy", 2)
    lost = copy / "checkpoints" / "checkpoint-2" / "curriculum.json"
    lost.unlink()
    with refused(StorageError, lost):
        train(config, resume=True)


def test_another_curriculum_is_another_run(straight, tmp_path):
    config, _ = stopped_copy(*straight, tmp_path / "copy", 2)
    with refused(CheckpointError, "train.curriculum.floor: 0.05 → 0.5"):
        train(change(config, **{"train.curriculum.floor": 0.5}), resume=True)


def test_a_mix_has_a_curriculum_of_its_own():
    members = {"a": {}, "b": {"env": {"index": "other"}}}
    with pytest.raises(ValueError, match=r"train\.curriculum .*mix\.curriculum"):
        RunConfig.model_validate({"train": {"curriculum": SETTINGS}, "mix": {"environments": members}})
