"""The job scripts without Slurm: their requests, the output of a dry run, and when a run is requeued."""

import os
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from querylect.configs.load import load_config
from querylect.errors import ConfigError
from querylect.slurm.job_env import as_shell, job_env, launcher_of

from ..command import programs
from ..raising import refused

pytestmark = [pytest.mark.server, pytest.mark.slow]

SLURM = Path(__file__).parents[2] / "slurm"
REAL = Path(sys.executable).with_name("querylect")
TRAINING = sorted(path.name for path in SLURM.glob("grpo_*.sh"))


def bash(script, *arguments, cwd, **more):
    around = {"QUERYLECT_SLURM": str(SLURM), "QUERYLECT": str(REAL), **more}
    command = ["bash", str(SLURM / script), *arguments]
    return subprocess.run(command, env=os.environ | around, cwd=cwd, capture_output=True, text=True, check=False)


def test_every_job_script_is_bash():
    for script in sorted(SLURM.glob("*.sh")):
        subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("script", TRAINING)
def test_a_job_that_goes_back_into_the_queue_may_and_keeps_its_log(script):
    """Without --requeue `scontrol requeue` is refused where the cluster says so; without append the log begins anew."""
    lines = (SLURM / script).read_text().splitlines()
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append", "#SBATCH --signal=B:USR1@600"} <= set(lines)


def test_a_job_that_fails_says_why_and_hands_on_the_exit_code(tmp_path):
    result = bash("grpo_contriever.sh", "tiny", "train.stps=5", cwd=tmp_path)
    assert result.returncode == 2
    assert "train.steps" in result.stderr
    assert not list(tmp_path.iterdir()), "nothing was begun"


@pytest.mark.parametrize(
    ("script", "nodes", "expected"),
    [
        ("grpo_nodes.sh", "2", ["index", "retriever: the trainer's own, one on every node", "trainer"]),
        ("grpo_vllm_server.sh", "2", ["index", "retriever", "vllm", "trainer"]),
    ],
)
def test_a_dry_run_says_who_runs_where_and_begins_nothing(script, nodes, expected, tmp_path):
    result = bash(script, "--dry-run", cwd=tmp_path, SBATCH_PARTITION="gpu", NODES=nodes)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "sbatch"
    assert {"    --signal=B:USR1@600", "    SBATCH_PARTITION=gpu"} <= set(lines)
    assert [line for line in lines if not line.startswith(" ") and line != "sbatch"] == expected
    assert not list(tmp_path.iterdir())
    commands = {name: line for name, line in pairwise(lines) if not name.startswith(" ")}
    assert "querylect train" in commands["trainer"]
    if "vllm" in commands:
        assert "--nodelist=node-2 " in commands["vllm"]
        assert commands["vllm"].endswith(" --host node-2")


@pytest.mark.parametrize(
    ("sharding", "lora", "on_all", "launched"),
    [
        ("", False, False, ["--use_deepspeed", "zero2.json"]),
        ("zero3", False, False, ["--use_deepspeed", "zero3.json"]),
        ("ddp", False, False, ["--multi_gpu"]),
        ("fsdp2", False, False, ["--config_file", "fsdp2.yaml"]),
        ("", True, False, []),
        ("", True, True, ["--multi_gpu"]),
    ],
)
def test_all_weights_take_all_gpus_and_adapters_one(sharding, lora, on_all, launched, monkeypatch):
    monkeypatch.setenv("SHARDING", sharding)
    config = load_config("paper_bm25", ["policy.lora={}"] if lora else [])
    launcher = launcher_of(config.policy, 8, on_all)
    assert launcher[:4] == (["--num_processes", "8", "--mixed_precision", "no"] if launched else [])
    assert set(launched) <= {Path(option).name for option in launcher}
    assert launcher_of(config.policy, 1, on_all=False) == []


AHEAD = ["train.staleness=1", "train.questions_per_step=510"]


def test_some_gpus_of_a_node_may_sample_while_the_others_train(tmp_path):
    result = bash("grpo_contriever.sh", *AHEAD, "--dry-run", cwd=tmp_path, VLLM_GPUS="3")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    vllm, trainer = (lines[lines.index(name) + 1].replace("\\", "") for name in ("vllm", "trainer"))
    assert "env CUDA_VISIBLE_DEVICES=5,6,7 " in vllm
    assert "--data_parallel_size 3 --host 127.0.0.1" in vllm
    assert "env CUDA_VISIBLE_DEVICES=0,1,2,3,4 " in trainer
    assert "--num_processes 5 " in trainer
    assert "rollout.engine=vllm_server rollout.server.base_url=http://127.0.0.1:" in trainer


@pytest.mark.parametrize(
    ("script", "arguments", "more", "message"),
    [
        ("grpo_contriever.sh", [*AHEAD, "--dry-run"], {"VLLM_GPUS": "8"}, "VLLM_GPUS is 8, of 8 GPUs"),
        ("grpo_nodes.sh", ["--dry-run"], {"SHARDING": "zero7"}, "'zero7'"),
        ("grpo_vllm_server.sh", ["--dry-run"], {"NODES": "1"}, "sbatch --nodes=2"),
        ("grpo_bm25.sh", ["tiny", "--dryrun"], {}, "There is no option --dryrun"),
        ("grpo_bm25.sh", ["tiny"], {"SLURM_ARRAY_TASK_ID": "2"}, "task 2 of 1 configs"),
        ("grpo_bm25.sh", [], {"QUERYLECT": "", "PATH": "/usr/bin:/bin"}, "none on the PATH"),
        ("grpo_bm25.sh", [], {"QUERYLECT_CLUSTER": "/none.sh"}, "The cluster file /none.sh cannot be read."),
        ("index_array.sh", ["--dry-run"], {}, "Name the config"),
        ("eval_array.sh", ["eval.limit=5"], {}, "Name what is to be evaluated"),
        ("eval_array.sh", ["a"], {"SLURM_ARRAY_TASK_ID": "0"}, "Tasks are counted from 1: sbatch --array=1-1"),
    ],
)
def test_a_job_that_cannot_run_says_why_and_begins_nothing(script, arguments, more, message, tmp_path):
    result = bash(script, *arguments, cwd=tmp_path, **more)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_without_gpus_every_node_trains_in_one_process(tmp_path):
    result = bash("grpo_nodes.sh", "tiny", "--dry-run", cwd=tmp_path, NODES="2", GPUS_PER_NODE="0")
    assert "--num_processes 2 " in result.stdout, result.stderr


def test_a_cluster_file_of_one_s_own_is_read_for_commands_and_requests(tmp_path):
    (tmp_path / "mine.sh").write_text(
        'container=(apptainer exec image.sif)\nexport SBATCH_ACCOUNT=ours\necho "$NO_SUCH_VARIABLE"\nfalse\n'
    )
    programs(tmp_path, apptainer='shift 2; exec "$@"')
    path = f"{tmp_path}:{os.environ['PATH']}"
    result = bash("grpo_bm25.sh", "--dry-run", cwd=tmp_path, QUERYLECT_CLUSTER=str(tmp_path / "mine.sh"), PATH=path)
    assert "    SBATCH_ACCOUNT=ours" in result.stdout
    launcher = f"    apptainer exec image.sif {REAL.with_name('python')} -m accelerate.commands.launch"
    (trainer,) = [line for line in result.stdout.splitlines() if line.startswith(launcher)]
    assert "--num_processes 8" in trainer
    assert "--use_deepspeed" in trainer
    assert "/zero2.json --deepspeed_multinode_launcher standard " in trainer
    assert trainer.endswith(" -m querylect train paper_bm25")


def test_the_tasks_of_an_evaluation_share_its_runs_out(tmp_path):
    shares = []
    for task in ("1", "2"):
        array = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_MAX": "2"}
        result = bash("eval_array.sh", "a", "eval.limit=5", "b", "c", "--dry-run", cwd=tmp_path, **array)
        shares.append([line.split(" eval ")[1] for line in result.stdout.splitlines() if " eval " in line])
    assert shares == [["a eval.limit=5", "c eval.limit=5"], ["b eval.limit=5"]]


def test_a_task_of_a_training_array_trains_its_own_config(tmp_path):
    odd = "it's a $(touch marker) #1.yaml"
    for name in ("tiny.yaml", odd):
        (tmp_path / name).write_text(f"output: {name.partition('.')[0]!r}\n")
    result = bash("grpo_bm25.sh", "tiny.yaml", odd, "seed=2", "--dry-run", cwd=tmp_path, SLURM_ARRAY_TASK_ID="2")
    assert shlex.split(result.stdout.splitlines()[-1])[-3:] == ["train", odd, "seed=2"], result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", odd}


def test_the_tasks_of_an_index_are_its_shards(tmp_path):
    def task(number, first, last, count, *more):
        array = {"ID": number, "MIN": first, "MAX": last, "COUNT": count}
        around = {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in array.items()}
        return bash("index_array.sh", "tiny", "--dry-run", *more, cwd=tmp_path, **around)

    assert task(2, 1, 4, 4).stdout.endswith(" index build --shard 2/4 tiny\n")
    assert task(0, 0, 0, 1).stdout.endswith(" index merge tiny\n")
    assert task(1, 1, 1, 1).stdout.endswith(" index build tiny --missing\n"), "one task alone builds everything"
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "meta.json").touch()
    assert " index " not in task(2, 1, 4, 4, "env.index=there").stdout, "what is there is left alone"


def test_what_a_job_knows_of_its_config(tmp_path):
    elsewhere = "mix.environments.bm25.client={urls: ['http://a:1'], token_env: THEIRS}"
    variables = job_env("mix_bm25_minilm", ["output=some where", elsewhere])
    assert variables["run"] == "some where/mix-bm25-minilm"
    assert variables["serving"] == ["minilm"]
    assert variables["token_envs"] == ["QUERYLECT_TOKEN"]
    with refused(ConfigError, "mix.environments.bm25.client.token_env", "QUERYLECT_TOKEN"):
        job_env("mix_bm25_minilm", ["mix.environments.bm25.client={urls: ['http://a:1']}"])
    (tmp_path / "there").mkdir()
    variables = job_env("tiny", [f"env.index={tmp_path}/there"])
    assert (variables["serving"], variables["building"]) == ([""], [""])
    assert f"{tmp_path}/.there.parts" in variables["finished"]
    (tmp_path / "there" / "meta.json").touch()
    assert job_env("tiny", [f"env.index={tmp_path}/there"])["building"] == []
    shell = as_shell(job_env("tiny", ["output=some $(touch marker) where"])) + '\necho "$run|${serving[0]}"'
    output = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=tmp_path).stdout
    assert output == "some $(touch marker) where/tiny|\n"
