"""The lock of a run folder: one command at a time; a dead holder releases it."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from querylect.errors import StorageError
from querylect.storage import is_command_at_work, only_command

from ..raising import refused
from ..waiting import until


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
        until(lambda: ready.exists() or not process.is_alive())
        assert process.is_alive()
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.mark.parametrize("with_child", [False, True])
def test_a_folder_has_one_command_and_a_killed_holder_leaves_it_free(tmp_path, holder, with_child):
    """Also where a child that it forked lives on, which shares its open files."""
    process = holder(tmp_path, with_child)
    with refused(StorageError, f"at work in {tmp_path}"), only_command(tmp_path):
        pass
    assert is_command_at_work(tmp_path)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.kill()
    process.join()
    try:
        assert not is_command_at_work(tmp_path)
        with only_command(tmp_path):
            pass
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
    assert len(children) == with_child
