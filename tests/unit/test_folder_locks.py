"""The lock of a run folder: one command at a time; the refusal names the holder; a dead holder releases it."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from querylect.errors import StorageError
from querylect.storage import another_took_over, command_at_work, only_command

from ..raising import refused


def _hold(folder: Path, ready: Path, with_child: bool) -> None:
    with only_command(folder):
        if with_child and os.fork() == 0:
            signal.pause()  # outlives its parent
        ready.write_text("")
        signal.pause()


@pytest.fixture
def holder(tmp_path):
    """A function that starts a process which holds the lock of a folder, until it is killed."""
    started = []

    def start(folder: Path, with_child: bool = False):
        ready = tmp_path / f"ready-{len(started)}"
        process = multiprocessing.get_context("fork").Process(target=_hold, args=(folder, ready, with_child))
        process.start()
        started.append(process)
        while not ready.exists():
            assert process.is_alive()
            time.sleep(0.01)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def test_a_refusal_says_who_is_at_work_and_since_when(tmp_path, holder):
    process = holder(tmp_path)
    lock_content = json.loads((tmp_path / ".lock").read_text())
    assert lock_content["pid"] == process.pid
    with (
        refused(StorageError, tmp_path, process.pid, lock_content["host"], lock_content["started"]),
        only_command(tmp_path),
    ):
        pass
    assert str(process.pid) in (command_at_work(tmp_path) or "")


@pytest.mark.parametrize("garbage", ["", "[" * 50_000, '{"pid": 1}', "\0"])
def test_a_held_lock_that_says_nothing_of_its_holder_is_refused_all_the_same(tmp_path, holder, garbage):
    holder(tmp_path)
    (tmp_path / ".lock").write_text(garbage)
    with refused(StorageError, tmp_path), only_command(tmp_path):
        pass
    assert command_at_work(tmp_path)


@pytest.mark.parametrize("with_child", [False, True])
def test_a_killed_holder_leaves_the_folder_free_at_once(tmp_path, holder, with_child):
    """Also where a child that it forked lives on, which shares its open files."""
    process = holder(tmp_path, with_child)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.kill()
    process.join()
    try:
        assert command_at_work(tmp_path) is None
        with only_command(tmp_path):
            assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
    assert len(children) == with_child


def test_a_command_that_wrote_nothing_leaves_no_folder(tmp_path):
    with only_command(tmp_path / "new" / "run"):
        assert (tmp_path / "new" / "run").is_dir()
    assert not (tmp_path / "new").exists()
    with only_command(tmp_path / "new" / "run"):
        (tmp_path / "new" / "run" / "config.yaml").write_text("")
    assert (tmp_path / "new" / "run" / ".lock").read_text() == ""
    assert command_at_work(tmp_path / "new" / "run") is None


def test_a_folder_that_was_made_anew_by_another_command_is_lost(tmp_path, holder):
    folder = tmp_path / "run"
    with only_command(folder):
        assert not another_took_over(folder)
        (folder / ".lock").unlink()
        assert not another_took_over(folder), "a removed lock file alone ends no run"
        shutil.rmtree(folder)
        holder(folder)
        assert another_took_over(folder)
    assert command_at_work(folder) is not None
