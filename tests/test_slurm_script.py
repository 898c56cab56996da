"""The job script outside of Slurm: it builds the index, trains, saves on the cluster's signal and goes on."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from .lessons import change, lesson_url, lessons, records, settings, speaking  # noqa: F401 (fixtures)
from .several import free_port

SCRIPT = Path(__file__).parents[1] / "slurm" / "grpo_contriever.sh"


@pytest.fixture
def job(settings, tmp_path):  # noqa: F811
    """Starts the script on a run of 500 steps, which is only ever ended by a signal."""
    endless = change(settings, **{"client.urls": "local", "train.steps": 500, "env.index": str(tmp_path / "index")})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(endless.model_dump(mode="json")))
    command = Path(sys.executable).parent / "querylect"
    started = []

    def start(*overrides: str, script: Path = SCRIPT, **more: str) -> subprocess.Popen:
        log = (tmp_path / f"job-{len(started) + 1}.log").open("w")
        surroundings = os.environ | {"SLURM_SUBMIT_DIR": str(tmp_path), "QUERYLECT": str(command), "SLURM_JOB_ID": "41"}
        surroundings |= more
        surroundings["PATH"] = f"{tmp_path}:{surroundings['PATH']}"
        (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/scontrol.log\n')
        (tmp_path / "scontrol").chmod(0o755)
        process = subprocess.Popen(
            ["bash", script, "run.yaml", *overrides], env=surroundings, stdout=log, stderr=log, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def trained(folder: Path, process: subprocess.Popen, steps: int) -> None:
    until = time.monotonic() + 240
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and len(metrics.read_bytes().splitlines()) >= steps):
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_job_saves_on_the_cluster_s_signal_and_the_same_job_goes_on(job, tmp_path):
    run = tmp_path / "runs" / "run"
    first = job()
    trained(run, first, 1)
    first.send_signal(signal.SIGUSR1)
    assert first.wait(120) == 75, (tmp_path / "job-1.log").read_text()
    assert (tmp_path / "scontrol.log").read_text() == "requeue 41\n"
    assert (tmp_path / "index" / "manifest.json").exists()
    reached = len(records(run / "metrics.jsonl"))
    assert [path.name for path in (run / "checkpoints").iterdir()][-1:] == [f"checkpoint-{reached}"]
    assert not (run / "final").exists()

    second = job()
    trained(run, second, reached + 1)
    second.terminate()
    assert second.wait(120) == 75
    assert (tmp_path / "scontrol.log").read_text() == "requeue 41\n", "a cancelled job does not come back"
    assert f"continuing from step {reached}" in (tmp_path / "job-2.log").read_text()
    assert [line["step"] for line in records(run / "metrics.jsonl")] == list(
        range(1, len(records(run / "metrics.jsonl")) + 1)
    )


def test_a_job_that_fails_says_why_and_hands_on_the_exit_code(job, tmp_path):
    assert job("train.stps=5").wait(120) == 2
    assert "train.steps" in (tmp_path / "job-1.log").read_text()


@pytest.mark.parametrize("script", sorted(SCRIPT.parent.glob("*.sh")), ids=lambda path: path.name)
def test_every_job_script_is_bash(script):
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("script", ["grpo_contriever.sh", "grpo_nodes.sh", "grpo_vllm_server.sh"])
def test_a_job_that_goes_back_into_the_queue_may_and_keeps_its_log(script):
    """Without --requeue `scontrol requeue` is refused where the cluster says so; without append the log begins anew."""
    lines = (SCRIPT.parent / script).read_text().splitlines()
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append", "#SBATCH --signal=B:USR1@600"} <= set(lines)


STANDINS = {
    "scontrol": 'echo "$@" >>calls',
    "srun": 'trap "exit 1" USR1; echo launched >>calls; while true; do read -t 1 <>pipe; done',
    "python": f'exec "{sys.executable}" "$@"',
    "querylect": 'printf "output: runs\\nname: run\\n"; echo "querylect $*" >>calls',
}


@pytest.mark.parametrize(
    ("finished", "saved", "code"), [(7, [5, 7], 75), (None, [], 75), (7, [5], 1), (10, [9, 10], 75)]
)
def test_several_nodes_go_on_where_the_last_finished_step_is_saved(tmp_path, finished, saved, code):
    """Also by a checkpoint from before the signal: a step that was given up leaves no new one."""
    (tmp_path / "bin").mkdir()
    for name, text in STANDINS.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    os.mkfifo(tmp_path / "pipe")
    run = tmp_path / "runs" / "run"
    for step in saved:
        (run / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    if finished is not None:
        (run / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "loss": 1.0}}\n' for n in range(1, finished + 1)))
    around = {"QUERYLECT": str(tmp_path / "bin" / "querylect"), "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "41"}
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    process = subprocess.Popen(["bash", SCRIPT.parent / "grpo_nodes.sh"], env=os.environ | around | path)
    try:
        until = time.monotonic() + 120
        while "launched" not in (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else True:
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(120) == code
    finally:
        process.kill()
    assert ("requeue 41" in (tmp_path / "calls").read_text()) == (code == 75)


def test_a_job_on_several_nodes_launches_its_processes_and_hands_signals_on(job, tmp_path):
    """A stand-in for srun runs the launcher of one node; two processes train, and the signal reaches both."""
    (tmp_path / "srun").write_text('#!/bin/sh\nSLURM_NODEID=0 exec "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    run = tmp_path / "runs" / "run"
    surroundings = {"GPUS_PER_NODE": "2", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    process = job(script=SCRIPT.parent / "grpo_nodes.sh", **surroundings)
    trained(run, process, 1)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(240) == 75, (tmp_path / "job-1.log").read_text()
    assert "requeue 41" in (tmp_path / "scontrol.log").read_text()
    reached = len(records(run / "metrics.jsonl"))
    (newest,) = (run / "checkpoints").glob(f"checkpoint-{reached}")
    assert sorted(path.name for path in newest.glob("rng_state*")) == ["rng_state_0.pth", "rng_state_1.pth"]
