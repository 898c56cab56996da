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
from querylect.slurm.job_env import as_shell, job_env
from querylect.slurm.requests import launcher_of

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


def test_a_module_in_the_folder_of_submission_is_not_imported(tmp_path):
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    result = bash("grpo_bm25.sh", "tiny", "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("script", "more", "expected"),
    [
        (
            "grpo_contriever.sh",
            {"NODES": "2", "RETRIEVER_NODES": "1"},
            ["index", "retriever-node-2", "trainer"],
        ),
        ("grpo_nodes.sh", {"NODES": "2"}, ["index", "retriever: the trainer's own, one on every node", "trainer"]),
        (
            "grpo_vllm_server.sh",
            {"NODES": "4", "RETRIEVER_NODES": "2"},
            ["index", "retriever-node-3", "retriever-node-4", "vllm", "trainer"],
        ),
    ],
)
def test_a_dry_run_says_who_runs_where_and_begins_nothing(script, more, expected, tmp_path):
    result = bash(script, "--dry-run", cwd=tmp_path, SBATCH_PARTITION="gpu", **more)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "sbatch"
    assert "    --signal=B:USR1@600" in lines
    assert "    SBATCH_PARTITION=gpu" in lines
    assert [line for line in lines if not line.startswith(" ") and line != "sbatch"] == expected
    assert not list(tmp_path.iterdir())
    commands = {name: line for name, line in pairwise(lines) if not name.startswith(" ")}
    if "NODES" in more:
        assert "querylect train" in commands["trainer"]
        for name in expected:
            if name.startswith("retriever-"):
                assert f"--nodelist={name.removeprefix('retriever-')} " in commands[name]
                assert commands[name].endswith("--facing node-1")


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


def test_gpus_for_vllm_that_the_job_cannot_give_are_refused(tmp_path):
    result = bash("grpo_contriever.sh", *AHEAD, "--dry-run", cwd=tmp_path, VLLM_GPUS="8")
    assert result.returncode == 2
    assert "VLLM_GPUS is 8, of 8 GPUs" in result.stderr


def test_a_sharding_that_a_job_does_not_know_is_refused(tmp_path):
    result = bash("grpo_nodes.sh", "--dry-run", cwd=tmp_path, SHARDING="zero7")
    assert (result.returncode, result.stdout) == (2, "")
    assert "'zero7'" in result.stderr


def test_a_job_without_a_node_to_train_is_refused(tmp_path):
    result = bash("grpo_vllm_server.sh", "--dry-run", cwd=tmp_path, NODES="2", RETRIEVER_NODES="1")
    assert result.returncode == 2
    assert "sbatch --nodes=3" in result.stderr


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("index_array.sh", ["--dry-run"], "Name the config"),
        ("grpo_bm25.sh", ["tiny", "--dryrun"], "There is no option --dryrun"),
    ],
)
def test_a_job_names_its_missing_config_and_an_unknown_option(script, arguments, message, tmp_path):
    result = bash(script, *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(message)
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_a_cluster_file_of_one_s_own_is_read_for_commands_and_requests(tmp_path):
    (tmp_path / "mine.sh").write_text("container=(apptainer exec image.sif)\nexport SBATCH_ACCOUNT=ours\n")
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
    result = bash("eval_array.sh", "eval.limit=5", cwd=tmp_path)
    assert result.returncode == 2
    assert "Name what is to be evaluated" in result.stderr
    again = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_MAX": "4"}
    result = bash("eval_array.sh", "a", "b", "c", "d", "--dry-run", cwd=tmp_path, **again)
    assert [line.split(" eval ")[1] for line in result.stdout.splitlines() if " eval " in line] == ["b"]
    result = bash("eval_array.sh", "a", cwd=tmp_path, SLURM_ARRAY_TASK_ID="0", SLURM_ARRAY_TASK_MAX="1")
    assert (result.returncode, result.stderr) == (2, "Tasks are counted from 1: sbatch --array=1-1 …\n")


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


def test_a_cluster_file_ends_no_job(tmp_path):
    """The user's own lines: a test that fails at the end, a variable that is not set."""
    (tmp_path / "mine.sh").write_text('echo "$NO_SUCH_VARIABLE"\nfalse\n[ -d /nowhere ] && export HF_HOME=/nowhere\n')
    cluster_file = str(tmp_path / "mine.sh")
    result = bash("grpo_bm25.sh", "--dry-run", cwd=tmp_path, QUERYLECT_CLUSTER=cluster_file)
    assert result.returncode == 0, result.stderr
    assert "-m querylect train paper_bm25" in result.stdout
    result = bash("grpo_bm25.sh", "--dry-run", cwd=tmp_path, QUERYLECT_CLUSTER=f"{cluster_file}.not")
    assert result.returncode == 2
    assert result.stderr.startswith(f"The cluster file {cluster_file}.not cannot be read.")


def test_without_an_installation_a_job_says_so(tmp_path):
    result = bash("grpo_bm25.sh", cwd=tmp_path, QUERYLECT="", PATH="/usr/bin:/bin")
    assert result.returncode == 2
    assert "none on the PATH" in result.stderr


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
