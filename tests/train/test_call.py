"""`querylect.train(…)` from Python."""

import pytest
import querylect
from querylect.configs.load import dump_config
from querylect.errors import ConfigError
from transformers import TrainerCallback

from ..lessons import records
from ..raising import refused

pytestmark = pytest.mark.model


class Steps(TrainerCallback):
    def __init__(self):
        self.losses, self.ended = [], False

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            self.losses.append((state.global_step, logs["loss"]))

    def on_train_end(self, args, state, control, **_):
        self.ended = True


def test_a_run_from_python_calls_callbacks_and_gives_a_rewriter(settings, tmp_path):
    (tmp_path / "mine.yaml").write_text(dump_config(settings), encoding="utf-8")
    steps = Steps()
    folder = querylect.train(tmp_path / "mine.yaml", ["train.steps=1", "name=called"], callbacks=[steps])
    assert folder == tmp_path / "runs" / "called"
    assert [step for step, _ in steps.losses] == [1]
    assert float(f"{steps.losses[0][1]:.6g}") == records(folder / "metrics.jsonl")[0]["loss"]
    assert steps.ended
    assert querylect.Rewriter.from_pretrained(folder, turn=1).rewrite("my head hurts").failure is None
    with refused(ConfigError):
        querylect.train(tmp_path / "mine.yaml", ["name=called"])
    with refused(ConfigError, "seed=1"):
        querylect.train(settings, ["seed=1"])
