"""The job script of two nodes, with stand-ins for Slurm, server and trainer: how they start, are signalled and end."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ..waiting import until

SLURM = Path(__file__).parents[2] / "slurm"

COMMANDS = {
    "scontrol": """
        [[ "$2" == hostnames ]] && printf "node-a\\nnode-b\\n" || echo "NodeName=$3 NodeAddr=127.0.0.1 Port=1" """,
    "srun": 'echo "srun $*" >>calls; while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "trl": 'echo "trl $*" >>calls; trap "echo server ended >>calls; exit" TERM; while true; do read -t 1 <>pipe; done',
    "python": f'exec "{sys.executable}" "$@"',
    "querylect": """
        echo "querylect $*" >>calls
        [[ "$1" == train ]] || exit 0
        trap "echo told to save >>calls; exit 3" USR1
        while true; do read -t 1 <>pipe; done""",
}


@pytest.fixture
def job(tmp_path):
    """The running script on its two nodes; its calls go to the file `calls`."""
    (tmp_path / "bin").mkdir()
    for name, text in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    os.mkfifo(tmp_path / "pipe")
    around = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "QUERYLECT": str(tmp_path / "bin" / "querylect"),
        "QUERYLECT_SLURM": str(SLURM),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "5",
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "VLLM_ARGS": "--tensor_parallel_size 4",
    }
    command = ["bash", SLURM / "grpo_vllm_server.sh", "paper_bm25", "seed=3", "client.urls=['http://127.0.0.1:1']"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=around, stdout=log, stderr=log, start_new_session=True)
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_one_node_serves_the_other_trains_and_both_end_together(job, tmp_path):
    calls = tmp_path / "calls"

    def wait_for(text):
        until(lambda: calls.exists() and text in calls.read_text(), (tmp_path / "log").read_text)

    wait_for("querylect train")
    wait_for("\ntrl vllm-serve")
    call_lines = calls.read_text().splitlines()
    (served,) = [line for line in call_lines if line.startswith("srun")]
    assert "--nodelist=node-b" in served
    (server,) = [line for line in call_lines if line.startswith("trl")]
    assert server == (
        "trl vllm-serve --model Qwen/Qwen3-8B --port 10041 --enable_prefix_caching true --tensor_parallel_size 4 "
        "--host 127.0.0.1"
    )
    (trainer,) = [line for line in call_lines if line.startswith("querylect train")]
    assert trainer == (
        "querylect train paper_bm25 seed=3 client.urls=['http://127.0.0.1:1'] rollout.engine=vllm_server "
        "rollout.server.base_url=http://127.0.0.1:10041 rollout.server.group_port=10042 rollout.server.timeout=1800"
    )
    job.send_signal(signal.SIGUSR1)
    assert job.wait(60) == 3, "the trainer's exit code is the job's"
    wait_for("server ended")
    assert "told to save" in calls.read_text()
