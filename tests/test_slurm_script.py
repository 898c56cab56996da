"""The job scripts without Slurm: what they ask for, what a dry run says, and when a run may go on."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from querylect.cli import main
from querylect.slurm.facts import as_shell, facts

SLURM = Path(__file__).parents[1] / "slurm"
REAL = Path(sys.executable).with_name("querylect")
TRAINING = sorted(path.name for path in SLURM.glob("grpo_*.sh"))


def bash(script, *arguments, cwd, **more):
    around = {"QUERYLECT_SLURM": str(SLURM), "QUERYLECT": str(REAL), **more}
    command = ["bash", str(SLURM / script), *arguments]
    return subprocess.run(command, env=os.environ | around, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", sorted(SLURM.glob("*.sh")), ids=lambda path: path.name)
def test_every_job_script_is_bash(script):
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("script", TRAINING)
def test_a_job_that_goes_back_into_the_queue_may_and_keeps_its_log(script):
    """Without --requeue `scontrol requeue` is refused where the cluster says so; without append the log begins anew."""
    lines = (SLURM / script).read_text().splitlines()
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append", "#SBATCH --signal=B:USR1@600"} <= set(lines)


def test_a_job_that_fails_says_why_and_hands_on_the_exit_code(tmp_path):
    told = bash("grpo_contriever.sh", "tiny", "train.stps=5", cwd=tmp_path)
    assert told.returncode == 2
    assert "train.steps" in told.stderr
    assert not list(tmp_path.iterdir()), "nothing was begun"


@pytest.mark.parametrize(
    ("script", "more", "expected"),
    [
        ("grpo_bm25.sh", {}, ["index", "retriever", "waiting", "trainer"]),
        ("grpo_two_turn.sh", {}, ["index", "retriever", "waiting", "trainer"]),
        (
            "grpo_contriever.sh",
            {"NODES": "2", "RETRIEVER_NODES": "1"},
            ["index", "retriever-node-2", "waiting", "trainer"],
        ),
        ("grpo_nodes.sh", {"NODES": "2"}, ["index", "retriever: the trainer's own, one on every node", "trainer"]),
        (
            "grpo_vllm_server.sh",
            {"NODES": "4", "RETRIEVER_NODES": "2"},
            ["index", "retriever-node-3", "retriever-node-4", "waiting", "vllm", "trainer"],
        ),
    ],
)
def test_a_dry_run_says_who_runs_where_and_begins_nothing(script, more, expected, tmp_path):
    told = bash(script, "--dry-run", cwd=tmp_path, SBATCH_PARTITION="gpu", **more)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert lines[0] == "sbatch"
    assert "    --signal=B:USR1@600" in lines
    assert "    SBATCH_PARTITION=gpu" in lines
    assert [line for line in lines if not line.startswith(" ") and line not in ("sbatch", "run")] == expected
    assert not list(tmp_path.iterdir())
    commands = {name: line for name, line in pairwise(lines) if not name.startswith(" ")}
    if "NODES" in more:
        assert "querylect train" in commands["trainer"]
        for name in expected:
            if name.startswith("retriever-"):
                assert f"--nodelist={name.removeprefix('retriever-')} " in commands[name]
                assert commands[name].endswith("--facing node-1")


def test_a_job_without_a_node_to_train_is_refused(tmp_path):
    told = bash("grpo_vllm_server.sh", "--dry-run", cwd=tmp_path, NODES="2", RETRIEVER_NODES="1")
    assert told.returncode == 2
    assert "none is left to train. Ask for more: sbatch --nodes=3" in told.stderr


def test_a_cluster_file_of_one_s_own_is_read_for_commands_and_requests(tmp_path):
    (tmp_path / "mine.sh").write_text("container=(apptainer exec image.sif)\nexport SBATCH_ACCOUNT=ours\n")
    (tmp_path / "apptainer").write_text('#!/bin/sh\nshift 2; exec "$@"\n')
    (tmp_path / "apptainer").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    told = bash("grpo_bm25.sh", "--dry-run", cwd=tmp_path, QUERYLECT_CLUSTER=str(tmp_path / "mine.sh"), PATH=path)
    assert "    SBATCH_ACCOUNT=ours" in told.stdout
    assert f"    apptainer exec image.sif {REAL} train paper_bm25\n" in told.stdout


def test_the_tasks_of_an_evaluation_share_its_runs_out(tmp_path):
    shares = []
    for task in ("1", "2"):
        array = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "1"}
        told = bash("eval_array.sh", "a", "eval.limit=5", "b", "c", "--dry-run", cwd=tmp_path, **array)
        shares.append([line.split(" eval ")[1] for line in told.stdout.splitlines() if " eval " in line])
    assert shares == [["a eval.limit=5", "c eval.limit=5"], ["b eval.limit=5"]]
    told = bash("eval_array.sh", "eval.limit=5", cwd=tmp_path)
    assert told.returncode == 2
    assert "Name what is to be evaluated" in told.stderr


def test_without_an_installation_a_job_says_so(tmp_path):
    told = bash("grpo_bm25.sh", cwd=tmp_path, QUERYLECT="", PATH="/usr/bin:/bin")
    assert told.returncode == 2
    assert "none on the PATH. Install it here, or name the command in" in told.stderr


def test_what_a_job_knows_of_its_config():
    known = facts("mix_bm25_minilm", ["output=some where", "mix.environments.bm25.client={urls: ['http://a:1']}"])
    assert known["run"] == "some where/mix-bm25-minilm"
    assert known["serving"] == ["minilm"]
    assert facts("tiny", [])["serving"] == [""]
    shell = subprocess.run(
        ["bash", "-c", as_shell(known) + '\necho "$run|${serving[0]}"'], capture_output=True, text=True
    )
    assert shell.stdout == "some where/mix-bm25-minilm|minilm\n"


def test_launch_writes_the_jobs_and_a_chain_of_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUERYLECT", str(REAL))
    with pytest.raises(SystemExit) as ended:
        main(["launch", "paper_qwen3", "seed=3", "--chain", "--nodes", "3", "--retriever-nodes", "1", "--gpus", "4",
              "--time", "1:00:00", "--partition", "gpu", "--dry-run"])  # fmt: skip
    assert not ended.value.code
    told = capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    heads = [line for line in told.splitlines() if line.startswith("──")]
    assert [line.split()[1] for line in heads] == ["index:", "merge:", "train:", "eval:"]
    assert "--array=1-16" in heads[0]
    assert "--array=0" in heads[1]
    assert "--nodes=3 --time=1:00:00 --partition=gpu --gpus-per-node=4" in heads[2]
    train = told[told.index("── train") : told.index("── eval")]
    assert "#SBATCH --gpus-per-node=4" in train
    assert "#SBATCH --signal=B:USR1@600" in train
    assert "train_job_on_all runs/paper-qwen3/job/config.yaml" in train
    assert "retriever-node-3" in train
    assert "--num_machines 2" in train
    assert "eval runs/paper-qwen3" in told[told.index("── eval") :]


def test_launch_without_slurm_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["launch", "tiny"])
    assert ended.value.code == 2
    assert "there is no sbatch here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


STANDINS = {
    "scontrol": 'echo "$@" >>calls',
    "srun": 'trap "exit 1" USR1; echo launched >>calls; while true; do read -t 1 <>pipe; done',
    "python": f'exec "{sys.executable}" "$@"',
    "querylect": 'echo "querylect $*" >>calls',
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
    run = tmp_path / "runs" / "tiny"
    for step in saved:
        (run / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    if finished is not None:
        (run / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "loss": 1.0}}\n' for n in range(1, finished + 1)))
    around = {
        "QUERYLECT": str(tmp_path / "bin" / "querylect"),
        "QUERYLECT_SLURM": str(SLURM),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "41",
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }
    served = "client.urls=['http://127.0.0.1:1']"
    process = subprocess.Popen(["bash", SLURM / "grpo_nodes.sh", "tiny", served], env=os.environ | around)
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
