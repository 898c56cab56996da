"""The run folder on disk: the files that resuming needs, and that a checkpoint is complete before its rename."""

import json
import logging
import resource
import signal

import pytest
from querylect.configs.schema import PolicyConfig, RunConfig, TrainConfig
from querylect.errors import CheckpointError, StorageError
from querylect.train.run_folder import RunFolder

from ..lessons import change
from ..raising import logged, refused

pytestmark = pytest.mark.model

WHOLE = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


def checkpoint(folder, step, *files):
    path = folder.checkpoints / f"checkpoint-{step}"
    for name in (*WHOLE, *files):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    return path


def test_a_checkpoint_without_what_the_run_needs_is_passed_over(tmp_path, caplog):
    """TRL would compare with another reference, without a word."""
    folder, config, needed = RunFolder(tmp_path), change(RunConfig(), **{"train.beta": 0.1}), "ref/model.safetensors"
    earlier, newest = checkpoint(folder, 1, needed), checkpoint(folder, 3)
    assert folder.newest_checkpoint(TrainConfig(), PolicyConfig()) == newest
    with caplog.at_level(logging.WARNING):
        assert folder.newest_checkpoint(config.train, config.policy) == earlier
    assert [path for path, _ in logged(caplog, "train.run_folder")] == [newest]
    checkpoint(folder, 3, needed)
    assert folder.newest_checkpoint(config.train, config.policy) == newest


ENVIRONMENT = ("retriever", "corpus_hash", "index_hash", "settings_hash")


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_a_run_started_on_another_environment_is_refused(tmp_path, name):
    """Each of these changes what a reward is; the address of a service does not."""
    folder, current = RunFolder(tmp_path), dict.fromkeys((*ENVIRONMENT, "url"), "a")
    folder.same_environment(current)
    (tmp_path / "environment.json").write_text(json.dumps({**current, "url": "b"}))
    folder.same_environment(current)
    (tmp_path / "environment.json").write_text(json.dumps({**current, name: "b"}))
    with refused(CheckpointError, f"{name}: 'b' → 'a'"):
        folder.same_environment(current)
    (tmp_path / "environment.json").write_text(json.dumps({key: current[key] for key in current if key != name}))
    with refused(CheckpointError, f"{name}: None → 'a'"):
        folder.same_environment(current)


def test_a_line_that_the_disk_does_not_take_leaves_no_part_of_it(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append(folder.validation, {"step": 0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    try:
        with refused(StorageError, folder.validation, "File too large"):
            folder.append(folder.validation, {"step": 1, "more": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert folder.validation.read_text() == '{"step": 0}\n'
