"""`querylect sweep --slurm` on a real Slurm: one task per run, each evaluated after its own training, and again.

A stand-in takes the place of what the tasks start, so that no model is loaded.
"""

import os
import shlex
import sys

import pytest
import yaml

from ..command import programs
from ..slurm_cluster import cluster  # noqa: F401 (fixture)

pytestmark = [pytest.mark.server, pytest.mark.slow]

STANDIN = """echo "$1 $(basename "$2" .yaml)" >>calls
run="runs/rates/$(basename "$2" .yaml)"
case "$1" in
train) cp "$2" "$run/config.yaml"; [[ "$2" != *seed-1* || -e mended ]] || exit 3; mkdir -p "$run/final" ;;
eval) echo '{}' >"$run/results.json" ;;
esac
"""


def test_tasks_train_their_own_runs_and_the_failed_one_is_submitted_again(cluster, tmp_path):  # noqa: F811
    programs(tmp_path / "bin", querylect=STANDIN, python=f'exec "{sys.executable}" "$@"')
    (tmp_path / "cluster.sh").write_text(f"export QUERYLECT={shlex.quote(str(tmp_path / 'bin' / 'querylect'))}\n")
    workdir = tmp_path / "here"
    workdir.mkdir()
    config = {"name": "base", "client": {"urls": ["http://127.0.0.1:1"]}, "policy": {"lora": {"r": 4}}}
    (workdir / "base.yaml").write_text(yaml.safe_dump(config))
    around = {"QUERYLECT_CLUSTER": str(tmp_path / "cluster.sh"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    command = [sys.executable, "-m", "querylect", "sweep", "base.yaml", "--set", "seed=0,1,2", "--name", "rates"]

    def submit():
        stdout = cluster.run(*command, "--slurm", "--eval", cwd=workdir, **around).stdout
        return [line.split()[0] for line in stdout.splitlines()]

    def log_of(kind):
        return "\n".join(path.read_text() for path in workdir.glob(f"runs/rates/logs/job-{kind}-*.log"))

    train, evaluate = submit()
    trained, evaluated = ([cluster.wait(f"{job}_{task}") for task in (1, 2, 3)] for job in (train, evaluate))
    assert trained == ["COMPLETED", "FAILED", "COMPLETED"], log_of("train")
    assert evaluated == ["COMPLETED", "CANCELLED", "COMPLETED"], log_of("eval")
    calls = sorted((workdir / "calls").read_text().splitlines())
    assert calls == ["eval seed-0", "eval seed-2", "train seed-0", "train seed-1", "train seed-2"]

    (workdir / "mended").touch()
    (workdir / "calls").unlink()
    train, evaluate = submit()
    assert cluster.wait(f"{evaluate}_1") == "COMPLETED", log_of("train")
    assert (workdir / "calls").read_text().splitlines() == ["train seed-1", "eval seed-1"]
    refusal = cluster.run(*command, "--slurm", "--eval", cwd=workdir, check=False, **around)
    assert (refusal.returncode, refusal.stdout) == (2, "")
    assert "--table" in refusal.stderr
