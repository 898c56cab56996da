"""docs/own-corpus.md, run as it stands: every file it shows is written, every command it shows is run, in one shell.

A minute, because it is the whole way of a user: corpus, index, service, training, evaluation, export, each a
process of its own. Only the model is smaller than the page's, by the variable that the page names.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ..pages import blocks
from ..several import free_port

pytestmark = pytest.mark.timeout(1800)  # on a machine with ten times more work than processors it took nine minutes


@pytest.fixture(scope="module")
def walked(tmp_path_factory, tiny_policy):
    """The folder in which the page was followed, what the commands printed, and the port of the service."""
    folder = tmp_path_factory.mktemp("own-corpus")
    for block in blocks("own-corpus.md"):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
    port = free_port()
    surroundings = {
        **os.environ,
        "PATH": f"{_commands(folder / '.bin')}:{os.environ['PATH']}",
        "PORT": str(port),
        "MODEL": str(tiny_policy),
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
    }
    script = "set -euo pipefail\n" + "".join(block.text for block in _commands_of_page())
    script += f'\nprintf %s "$QUERYLECT_TOKEN" > {shlex.quote(str(folder.with_name("token")))}\n'
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complained = shell.communicate()
    except BaseException:
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    service = folder / "service.log"
    assert shell.returncode == 0, f"{said}\n{complained}\n{service.read_text() if service.exists() else ''}"
    return folder, said, port


def test_the_page_can_be_followed_from_start_to_end(walked):
    folder, said, _ = walked
    assert "no question stands in two splits, by id or by words" in said
    assert '{"status":"ready"}' in said
    results = json.loads((folder / "runs/mine/results.json").read_text())
    assert results
    assert "<html" in (folder / "runs/mine/report.html").read_text()
    assert len((folder / "runs/mine/metrics.jsonl").read_text().splitlines()) == 3


def test_the_rewrite_of_a_question_is_printed(walked):
    _, said, _ = walked
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{") and '"rewrites"' in line]
    assert lines[-1]["question"] == "Delete a folder with everything in it"
    assert {"question", "rewrites", "think", "plan"} <= set(lines[-1])


def test_the_service_of_the_page_ends_with_its_shell(walked):
    _, _, port = walked
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_token_is_written_nowhere(walked):
    folder, said, _ = walked
    token = folder.with_name("token").read_text()
    assert len(token) == 32
    assert token not in said
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if token.encode() in path.read_bytes()] == []


def test_a_policy_can_be_exported(walked):
    folder, _, _ = walked
    assert json.loads((folder / "exported" / "querylect.json").read_text())["run"]["name"] == "mine"


def _commands_of_page():
    """The page's shell blocks."""
    shells = [block for block in blocks("own-corpus.md") if block.language == "bash"]
    assert len(shells) >= 6
    return shells


def _commands(folder: Path) -> Path:
    """A folder with `querylect` and `python` as those of this test."""
    folder.mkdir()
    for name, call in (("querylect", [sys.executable, "-m", "querylect"]), ("python", [sys.executable])):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(call)} "$@"\n')
        (folder / name).chmod(0o755)
    assert shutil.which("curl"), "the page asks the service with curl, which is not installed"
    return folder
