"""docs/own-corpus.md as it is: every file that it shows is written, every command but those of TABLE is run, in order.

It covers all steps of a user: corpus, index, service, training, evaluation, export, each a process of its own. Only the
model and the corpus are smaller than the page's, by the variables that the page names.
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

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1800)]

TABLE = "8. A table for a paper"
"""The section that is not run: it encodes a corpus (tables of a spec: tests/eval)."""


@pytest.fixture(scope="module")
def page_run(tmp_path_factory, tiny_policy):
    """The folder in which the page's commands ran, their stdout, and the port of the service."""
    folder = tmp_path_factory.mktemp("own-corpus")
    for block in blocks("own-corpus.md"):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
    assert shutil.which("curl"), "the page asks the service with curl, which is not installed"
    port = free_port()
    commands = [block.text for block in blocks("own-corpus.md") if block.language == "bash" and block.section != TABLE]
    assert len(commands) >= 6
    script = "".join(commands)
    script += f'\nprintf %s "$QUERYLECT_TOKEN" > {shlex.quote(str(folder.with_name("token")))}\n'
    return folder, _run(script, folder, {"PORT": str(port), "MODEL": str(tiny_policy), "EVERY": "3"}), port


def _run(script: str, folder: Path, variables: dict[str, str]) -> str:
    """The stdout of a shell in the folder; the shell and its children have ended when this returns."""
    surroundings = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        **variables,
    }
    shell = subprocess.Popen(
        ["bash", "-c", f"set -euo pipefail\n{script}"],
        cwd=folder,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = shell.communicate()
    except BaseException:
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    service = folder / "service.log"
    assert shell.returncode == 0, f"{stdout}\n{stderr}\n{service.read_text() if service.exists() else ''}"
    return stdout


def test_the_page_can_be_followed_from_start_to_end(page_run):
    folder, stdout, port = page_run
    assert "no question stands in two splits" in stdout
    assert '{"status":"ready"}' in stdout
    results = json.loads((folder / "runs/mine/results.json").read_text())
    assert results
    assert "<html" in (folder / "runs/mine/report.html").read_text()
    assert len((folder / "runs/mine/metrics.jsonl").read_text().splitlines()) == 3
    lines = [json.loads(line) for line in stdout.splitlines() if line.startswith("{") and '"rewrites"' in line]
    assert lines[-1]["question"] == "Delete a folder with everything in it"
    assert json.loads((folder / "exported" / "querylect.json").read_text())["run"]["name"] == "mine"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "the service ended with its shell"


def test_the_token_is_written_nowhere(page_run):
    folder, stdout, _ = page_run
    token = folder.with_name("token").read_text()
    assert len(token) == 32
    assert token not in stdout
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if token.encode() in path.read_bytes()] == []
