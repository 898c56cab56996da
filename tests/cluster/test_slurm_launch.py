"""`querylect launch` with a stand-in for sbatch: refusals, files, unchanged configs and Slurm's errors."""

import os

import pytest
from querylect.configs.load import load_config
from querylect.errors import ClusterError, ConfigError
from querylect.slurm.launch import LaunchOptions, jobs_of, launch

from ..raising import refused


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Sets what sbatch does; it runs in an empty folder."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("QUERYLECT_CLUSTER", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def does(text):
        (tmp_path / "bin" / "sbatch").write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / "sbatch").chmod(0o755)

    does("echo 12")
    return does


def test_the_config_of_a_job_that_may_still_wait_stays_as_it_is(sbatch, tmp_path):
    (submitted,) = launch(load_config("tiny", []), LaunchOptions())
    assert submitted[0] == "12"
    job_folder = tmp_path / "here" / "runs" / "tiny" / "job"
    before = {path: path.read_text() for path in job_folder.iterdir()}
    with refused(ConfigError, "runs/tiny/job/config.yaml", "name=…"):
        launch(load_config("tiny", ["seed=9"]), LaunchOptions(nodes=2))
    assert {path: path.read_text() for path in job_folder.iterdir()} == before
    launch(load_config("tiny", []), LaunchOptions(nodes=2))


def test_what_slurm_refused_stands_in_no_way(sbatch):
    sbatch("echo 'sbatch: error: Invalid account or account/partition combination specified' >&2; exit 1")
    with refused(ClusterError, "Invalid account", "--account"):
        launch(load_config("tiny", []), LaunchOptions())
    sbatch("echo 12")
    launch(load_config("tiny", ["seed=9"]), LaunchOptions())


def test_the_cluster_file_may_print_and_end_with_a_test_that_fails(sbatch, tmp_path, monkeypatch):
    sbatch('echo "$SBATCH_ACCOUNT" >account; echo "12;cluster"')
    (tmp_path / "mine.sh").write_text("export SBATCH_ACCOUNT=ours\necho a; echo b\n[ -d /nowhere ] && export A=1\n")
    monkeypatch.setenv("QUERYLECT_CLUSTER", str(tmp_path / "mine.sh"))
    assert [number for number, _ in launch(load_config("tiny", []), LaunchOptions())] == ["12"]
    assert (tmp_path / "here" / "account").read_text() == "ours\n"


def test_a_chain_builds_a_hybrid_in_one_job_and_takes_no_gpu_where_none_is_wanted():
    members = "[{retriever: bm25, index: none/b}, {retriever: contriever, index: none/c}]"
    hybrid = ["env.retriever=hybrid", "env.index=none/h", f"env.hybrid={{members: {members}}}"]
    chain = jobs_of(load_config("tiny", hybrid), LaunchOptions(gpus=0), chain=True)
    assert [job.name for job in chain] == ["index", "train", "eval"]
    assert "--array" not in chain[0].text
    assert not any("--array" in option for option in chain[0].options)
    assert ["--gpus=0" in job.options for job in chain] == [True, False, True]
    assert "--gpus-per-node=0" in chain[1].options
    chain = jobs_of(load_config("paper_contriever", ["env.index=none/c"]), LaunchOptions(), chain=True)
    assert [job.name for job in chain] == ["index", "merge", "train", "eval"]
    assert "--gpus=0" not in chain[0].options
