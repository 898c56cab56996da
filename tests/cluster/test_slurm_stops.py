"""The job scripts with stand-ins for Slurm and the commands: signals, requeueing, and files that remain."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..slurm_cluster import processes
from ..waiting import until

SLURM = Path(__file__).parents[2] / "slurm"
WAIT = "while true; do read -t 1 <>pipe; done"
STANDINS = {
    "scontrol": 'case "$2" in hostnames) printf "node-a\\nnode-b\\n" ;; node) ;; *) echo "$@" >>calls ;; esac',
    "srun": f'trap "echo told to save >>calls; exit 1" USR1; echo launched by srun >>calls; {WAIT}',
    "python": f"""
        case "$*" in
            *accelerate.commands.launch*)
                trap "echo told to save >>calls; exit 1" USR1 TERM; echo launched here >>calls; {WAIT} ;;
        esac
        exec "{sys.executable}" "$@" """,
    "querylect": f"""
        case "$1" in
            serve)
                echo "${{QUERYLECT_TOKEN-no token}} $(stat -c %a "$QUERYLECT_TOKEN_FILE")" >>calls
                read -t 1 <>pipe; exit 3 ;;
            train) [ ! -e steps ] || cp steps runs/tiny/metrics.jsonl; echo launched >>calls; {WAIT} ;;
        esac""",
}
SERVED = "client.urls=['http://127.0.0.1:1']"


@pytest.fixture
def job(tmp_path):
    """Starts a script; its calls go to the file `calls`."""
    (tmp_path / "bin").mkdir()
    for name, text in STANDINS.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "calls").touch()
    started = []

    def start(script, *arguments, **more):
        around = {
            "QUERYLECT": str(tmp_path / "bin" / "querylect"),
            "QUERYLECT_SLURM": str(SLURM),
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_ID": "41",
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        }
        command = ["bash", SLURM / script, "tiny", *arguments]
        with (tmp_path / "log").open("w") as log:
            started.append(subprocess.Popen(command, env=os.environ | around | more, stdout=log, stderr=log))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def signalled(process, number, folder):
    """The exit code after a signal that comes once the trainer is there."""
    until(lambda: "launched" in (folder / "calls").read_text() or process.poll() is not None)
    assert process.poll() is None, (folder / "log").read_text()
    process.send_signal(number)
    return process.wait(120)


@pytest.mark.parametrize(("finished", "saved", "code"), [(10, [9, 10], 75), (7, [5], 1)])
def test_several_nodes_go_on_where_the_last_finished_step_is_saved(job, tmp_path, finished, saved, code):
    """Also by a checkpoint from before the signal: a step that was given up leaves no new one."""
    run = tmp_path / "runs" / "tiny"
    for step in saved:
        (run / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "loss": 1.0}}\n' for n in range(1, finished + 1)))
    process = job("grpo_nodes.sh", SERVED, SLURM_JOB_NODELIST="node-[a-b]")
    assert signalled(process, signal.SIGUSR1, tmp_path) == code
    assert ("requeue 41" in (tmp_path / "calls").read_text()) == (code == 75)


@pytest.mark.parametrize("nodes", ["one", "several"])
def test_a_launcher_that_is_told_to_end_saves_and_does_not_come_back(job, tmp_path, nodes):
    """srun would kill its tasks on TERM; on one node the launcher itself takes it."""
    process = job("grpo_nodes.sh", SERVED, **({"SLURM_JOB_NODELIST": "node-[a-b]"} if nodes == "several" else {}))
    assert signalled(process, signal.SIGTERM, tmp_path) == 75
    how = "here" if nodes == "one" else "by srun"
    assert (tmp_path / "calls").read_text().splitlines() == [f"launched {how}", "told to save"]


@pytest.mark.parametrize(("number", "calls"), [(signal.SIGUSR1, ["requeue 41"]), (signal.SIGTERM, [])])
def test_a_signal_before_the_trainer_listens_loses_nothing(job, tmp_path, number, calls):
    assert signalled(job("grpo_bm25.sh", SERVED), number, tmp_path) == 75
    assert (tmp_path / "calls").read_text().splitlines() == ["launched", *calls]


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_run_that_never_gets_on_is_not_requeued_for_ever(job, tmp_path, gets_on):
    """Two starts have finished nothing. The third one finishes a step, or is the last."""
    run = tmp_path / "runs" / "tiny"
    run.mkdir(parents=True)
    (run / ".idle").write_text("2\n")
    if gets_on:
        (tmp_path / "steps").write_text('{"step": 1, "loss": 1.0}\n')
    assert signalled(job("grpo_bm25.sh", SERVED, SLURM_RESTART_COUNT="1"), signal.SIGUSR1, tmp_path) == 75
    assert ("requeue 41" in (tmp_path / "calls").read_text()) == gets_on
    message = "nothing was finished in 3 starts: raise --time or lower --signal"
    assert (message in (tmp_path / "log").read_text()) == (not gets_on)


def test_a_service_takes_the_token_of_the_job_and_leaves_nothing_behind(job, tmp_path):
    """It dies while it is waited for: what waits goes with it."""
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "manifest.json").touch()
    process = job("grpo_bm25.sh", f"output={tmp_path}/runs", "env.index=index", QUERYLECT_TOKEN="of the shell")
    assert process.wait(120) == 1
    assert "retriever ended with exit code 3" in (tmp_path / "log").read_text()
    assert (tmp_path / "calls").read_text() == "no token 600\n"
    services = str(tmp_path / "runs" / "tiny" / "services-41")
    assert not [snapshot.cmdline for snapshot in processes() if services in snapshot.cmdline]
