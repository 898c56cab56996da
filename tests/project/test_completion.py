"""Completion in a real bash, with the script that the command prints."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


@pytest.fixture
def shell(tmp_path):
    """Runs a line of bash in which `querylect` is a command; gives what it prints."""
    program = tmp_path / "querylect"
    start = "import sys; sys.argv[0] = 'querylect'; from querylect.cli import main; main()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    program.chmod(0o755)
    surroundings = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",  # else the shell that runs the tests decides
    }

    def run(line):
        command = ["bash", "--norc", "-c", line]
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_bash_completes_commands_options_and_configs(shell):
    lines = ["source <(querylect --show-completion bash)"]
    for words in ("querylect tr", "querylect index bu", "querylect serve --rew", "querylect train demo_"):
        count = len(words.split()) - 1
        lines += [f"COMP_WORDS=({words}); COMP_CWORD={count}; _querylect_completion querylect; echo ${{COMPREPLY[@]}}"]
    assert shell("\n".join(lines)).splitlines() == ["train", "build", "--rewriter", "demo_two_turn"]
