"""`querylect launch`: its commands, what a shell makes of odd names, unchanged configs and Slurm's errors."""

import os
import shlex
import subprocess
import sys

import pytest
from querylect.cli import main
from querylect.configs.load import load_config, validated
from querylect.configs.schema import RunConfig
from querylect.errors import ClusterError
from querylect.slurm.launch import LaunchOptions, describe, jobs_of, submit

from ..command import programs
from ..raising import refused
from ..slurm_cluster import cluster  # noqa: F401 (fixture)

pytestmark = [pytest.mark.server, pytest.mark.slow]

HOSTILE = """a'b"c $(touch marker) `touch marker` %j #; touch marker & d"""
ODD = "it's a #1 “run” 100%j $(touch marker)"


@pytest.fixture
def sbatch(tmp_path, workdir, monkeypatch):
    """Sets what sbatch does."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("QUERYLECT_CLUSTER", raising=False)

    def does(text):
        programs(tmp_path / "bin", sbatch=text)

    does("echo 12")
    return does


def launch(config, options=None):
    config_file = config.run_folder / "job" / "config.yaml"
    return submit({config_file: config}, [jobs_of(config, options or LaunchOptions(), chain=False)])


def requests_of(*arguments, chain=False, **options):
    return [job.request for job in jobs_of(load_config(*arguments), LaunchOptions(**options), chain)]


def test_a_dry_run_of_a_chain_prints_its_commands(workdir, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["launch", "paper_qwen3", "seed=3", "--chain", "--nodes", "3", "--gpus", "4",
              "--time", "1:00:00", "--partition", "gpu", "--dry-run"])  # fmt: skip
    assert not ended.value.code
    output = capsys.readouterr().out
    assert not list(workdir.iterdir())
    index, train, evaluation = [line for line in output.splitlines() if line.startswith("──")]
    assert [line.split()[1] for line in (index, train, evaluation)] == ["index:", "train:", "eval:"]
    assert "--array=1" in index
    assert "--nodes=3 --time=1:00:00 --gpus-per-node=4 --partition=gpu" in train
    assert train.endswith("/slurm/grpo_nodes.sh runs/paper-qwen3/job/config.yaml")
    assert evaluation.endswith("/slurm/eval_array.sh runs/paper-qwen3")
    assert "#SBATCH --signal=B:USR1@600" in output


def test_one_gpu_is_requested_for_adapters():
    one = {"gpus-per-node": "1", "cpus-per-task": "16", "mem": "128G"}
    assert requests_of("paper_bm25", []) == [{}]
    assert requests_of("paper_bm25", ["policy.lora={}"]) == [one]
    assert requests_of("paper_bm25", ["policy.lora={}"], gpus=4) == [{"gpus-per-node": "4"}]


def test_a_chain_takes_no_gpu_where_none_is_wanted():
    index, train, evaluation = requests_of("tiny", ["env.index=none/i"], gpus=0, chain=True)
    assert index == {"gpus": "0", "array": "1"}
    assert train["gpus-per-node"] == evaluation["gpus"] == "0"
    assert requests_of("paper_contriever", ["env.index=none/c"], chain=True)[0] == {"array": "1"}


def test_what_slurm_refused_stands_in_no_way(sbatch, monkeypatch):
    sbatch("echo 'sbatch: error: Invalid account or account/partition combination specified' >&2; exit 1")
    with refused(ClusterError, "Invalid account", "--account"):
        launch(load_config("tiny", []))
    sbatch("echo 12")
    launch(load_config("tiny", ["seed=9"]))
    monkeypatch.setenv("PATH", "/nowhere")
    with refused(ClusterError, "--dry-run"):
        launch(load_config("tiny", ["name=other"]))


def test_the_cluster_file_may_print_and_end_with_a_test_that_fails(sbatch, workdir, tmp_path, monkeypatch):
    sbatch('echo "$SBATCH_ACCOUNT" >account; echo "12;cluster"')
    (tmp_path / "mine.sh").write_text("export SBATCH_ACCOUNT=ours\necho a; echo b\n[ -d /nowhere ] && export A=1\n")
    monkeypatch.setenv("QUERYLECT_CLUSTER", str(tmp_path / "mine.sh"))
    assert launch(load_config("tiny", [])) == [("12", "train")]
    assert (workdir / "account").read_text() == "ours\n"


def hostile_config():
    """A config with HOSTILE in every setting that takes it as text."""
    values = load_config("tiny", []).model_dump(mode="json")
    accepted = []

    def fill(section, path):
        for key, value in section.items():
            if isinstance(value, dict):
                fill(value, f"{path}{key}.")
            elif value is None or isinstance(value, str):
                section[key] = HOSTILE
                try:
                    RunConfig.model_validate(values, strict=True)
                    accepted.append(path + key)
                except ValueError:
                    section[key] = value

    fill(values, "")
    assert {"output", "env.index", "env.model", "env.host", "policy.model"} <= set(accepted)
    assert "name" not in accepted
    return validated(RunConfig, values, "here")


def test_a_dry_run_executes_nothing_of_a_config_and_prints_commands_to_paste(workdir):
    jobs = jobs_of(hostile_config(), LaunchOptions(), True)
    heads = [line.partition(": ")[2] for line in describe(jobs).splitlines() if line.startswith("── ")]
    assert len(heads) == 3
    for head, job in zip(heads, jobs, strict=True):
        pasted = subprocess.run(["bash", "-c", f"printf '%s\\0' {head}"], capture_output=True, text=True, check=True)
        words = pasted.stdout.split("\0")[:-1]
        assert words == job.command()
        assert any(HOSTILE in word for word in words)
    assert not list(workdir.iterdir())


def test_slurm_takes_a_run_in_a_folder_of_an_odd_name(cluster, workdir, tmp_path):  # noqa: F811
    """The stand-in of querylect, instead of training, copies the config that it was given."""
    programs(tmp_path / "bin", querylect='cp "$2" seen.yaml', python=f'exec "{sys.executable}" "$@"')
    (tmp_path / "cluster.sh").write_text(f"export QUERYLECT={shlex.quote(str(tmp_path / 'bin' / 'querylect'))}\n")
    around = {"QUERYLECT_CLUSTER": str(tmp_path / "cluster.sh"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    client = 'client: {urls: ["http://127.0.0.1:1"]}'
    (workdir / "odd.yaml").write_text(f'output: "{ODD}"\nname: odd\nenv: {{index: "{ODD}"}}\n{client}\n')
    stdout = cluster.run(sys.executable, "-m", "querylect", "launch", "odd.yaml", cwd=workdir, **around).stdout
    number, job = stdout.split()
    assert job == "train"
    assert cluster.wait(number) == "COMPLETED"
    log = workdir / ODD / "odd" / "logs" / f"job-train-{number}.log"
    assert "done: " in log.read_text()
    assert load_config("seen.yaml", []) == load_config("odd.yaml", [])
    assert not (workdir / "marker").exists()
