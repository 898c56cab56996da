"""Names and paths of a config in `querylect launch`: the shell interprets none of them, and odd ones work."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from querylect.configs.load import load_config, validated
from querylect.configs.schema import RunConfig
from querylect.errors import ConfigError
from querylect.slurm.launch import LaunchOptions, describe_jobs, jobs_of, launch

from ..raising import refused
from ..slurm_cluster import cluster  # noqa: F401 (fixture)

HOSTILE = """a'b"c $(touch marker) `touch marker` %j #; touch marker & d"""
ODD = "it's a #1 “run” 100%j $(touch marker)"


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
    assert not {"name", "client.token_env"} & set(accepted)
    return validated(RunConfig, values, "here")


def test_a_dry_run_executes_nothing_of_a_config_and_prints_commands_to_paste(workdir):
    config = hostile_config()
    output = describe_jobs(jobs_of(config, LaunchOptions(), True), config.run_folder / "job")
    heads = [line.partition(": ")[2] for line in output.splitlines() if line.startswith("── ")]
    assert len(heads) == 4
    run = f"{HOSTILE}/{config.name}"
    for head in heads:
        assert shlex.split(head)[0] == "sbatch"
        assert shlex.split(head)[-1].startswith(f"{run}/job/")
    for command in heads:
        pasted = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True)
        assert any(HOSTILE in word for word in pasted.stdout.split("\0")), command
    for job in jobs_of(config, LaunchOptions(), True):
        subprocess.run(["bash", "-n"], input=job.text, text=True, check=True)
    assert not list(workdir.iterdir())


@pytest.mark.parametrize("setting", ['output="a\\nb"', 'policy.model="a\\tb"', "output=-rf"])
def test_a_path_that_no_job_can_hold_is_refused(workdir, setting):
    with refused(ConfigError, setting.partition("=")[0]):
        jobs_of(load_config("tiny", [setting]), LaunchOptions(), chain=False)


def trainer_of(folder):
    """A cluster file whose querylect, instead of training, copies the config that it was given."""
    (folder / "bin").mkdir()
    stand_ins = {"querylect": 'cp "$2" seen.yaml', "python": f'exec "{sys.executable}" "$@"'}
    for name, text in stand_ins.items():
        (folder / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "cluster.sh").write_text(f"export QUERYLECT={shlex.quote(str(folder / 'bin' / 'querylect'))}\n")


def odd_config():
    return load_config("tiny", [f'output="{ODD}"', f'env.index="{ODD}"', "client.urls=['http://127.0.0.1:1']"])


def test_a_run_in_a_folder_of_an_odd_name_is_submitted_and_trained(workdir, tmp_path, monkeypatch):
    trainer_of(tmp_path)
    (tmp_path / "bin" / "sbatch").write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" >asked\necho 12\n')
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    ((_, script),) = launch(odd_config(), LaunchOptions())
    arguments = (workdir / "asked").read_text().splitlines()
    assert arguments[1:3] == ["--job-name=train-tiny", f"--output={ODD.replace('%', '%%')}/tiny/logs/job-train-%j.log"]
    assert arguments[-1] == str(script)
    assert "job-name" not in "".join(line for line in script.read_text().splitlines() if line.startswith("#SBATCH"))
    again = script.read_text().splitlines()[1].removeprefix("# ")
    assert shlex.split(again) == ["sbatch", *arguments[1:]]
    subprocess.run(["bash", script], check=True, capture_output=True)
    assert load_config("seen.yaml", []) == odd_config()
    assert {path.name for path in workdir.iterdir()} == {"asked", "seen.yaml", ODD}


def test_slurm_takes_a_run_in_a_folder_of_an_odd_name(cluster, workdir, tmp_path):  # noqa: F811
    trainer_of(tmp_path)
    around = {"QUERYLECT_CLUSTER": str(tmp_path / "cluster.sh"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    (workdir / "odd.yaml").write_text(f'output: "{ODD}"\nname: odd\nclient: {{urls: ["http://127.0.0.1:1"]}}\n')
    stdout = cluster.run(sys.executable, "-m", "querylect", "launch", "odd.yaml", cwd=workdir, **around).stdout
    number, script = stdout.rstrip("\n").split(" ", 1)
    assert cluster.wait(number) == "COMPLETED"
    log = workdir / ODD / "odd" / "logs" / f"job-train-{number}.log"
    assert "done: " in log.read_text()
    assert Path(workdir / script).is_file()
    assert load_config("seen.yaml", []).output == ODD
    assert not (workdir / "marker").exists()
