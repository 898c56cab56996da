"""Real processes in one run folder: a second command is refused; a folder or a terminal that is gone ends a run."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from querylect.errors import StorageError
from querylect.storage import logged_objects
from querylect.train.run import train
from querylect.train.run_folder import RunFolder

from ..forked import Forked
from ..lessons import ENDLESS, change
from ..raising import refused
from ..waiting import until

pytestmark = pytest.mark.model


class Training:
    """`querylect train` of an endless run in a process of its own, and other commands beside it."""

    def __init__(self, config, folder: Path) -> None:
        self.config, self.folder = change(config, **{**ENDLESS, "train.save_steps": 3}), folder
        (folder / "run.yaml").write_text(yaml.safe_dump(self.config.model_dump(mode="json")))
        self.run = RunFolder(Path(config.output) / config.name)
        self.started = []

    def start(self, *arguments: str, name: str = "first", stderr: Path | None = None) -> Forked:
        command = list(arguments) or ["train", str(self.folder / "run.yaml")]
        process = Forked(command, self.folder / f"{name}.out", stderr or self.folder / f"{name}.err", {"TERM": "xterm"})
        self.started.append(process)
        return process

    def stderr(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text()

    def wait_for_step(self, process: Forked, step: int) -> None:
        until(lambda: len(self.steps()) >= step or process.poll() is not None)
        assert process.poll() is None, self.stderr("first")

    def steps(self) -> list[int]:
        return [line["step"] for line in logged_objects(self.run.metrics)]


@pytest.fixture
def training(settings, tmp_path):
    trainer = Training(settings, tmp_path)
    yield trainer
    for process in trainer.started:
        process.kill()
        process.wait(60)


def test_a_second_command_beside_a_live_trainer_is_refused_and_disturbs_nothing(training):
    first = training.start()
    training.wait_for_step(first, 2)
    with refused(StorageError, training.run.path):
        train(training.config, resume=True)
    training.wait_for_step(first, len(training.steps()) + 2)
    steps = training.steps()
    assert steps == list(range(1, len(steps) + 1))


def test_a_lost_terminal_saves_as_sigterm_does(training):
    master, slave = os.openpty()
    first = training.start(stderr=Path(os.ttyname(slave)))
    training.wait_for_step(first, 2)
    os.close(slave)
    os.close(master)  # from here on the live view cannot be drawn
    first.send_signal(signal.SIGHUP)
    assert first.wait(120) == 75
    reached = training.steps()[-1]
    newest = training.run.newest_checkpoint()
    assert newest == training.run.checkpoints / f"checkpoint-{reached}"


def test_a_removed_run_folder_ends_the_run_with_a_sentence(training):
    first = training.start()
    training.wait_for_step(first, 2)
    while training.run.path.exists():
        shutil.rmtree(training.run.path, ignore_errors=True)  # the run is writing and renaming in it
    assert first.wait(120) == StorageError.exit_code
    last = training.stderr("first").splitlines()[-1]
    assert last.startswith(f"error: {training.run.path}"), training.stderr("first")
    assert "Traceback" not in training.stderr("first")
    assert not training.run.path.exists()
