"""`querylect doctor`: its findings about this machine, simulated checks, and what a config needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from querylect.cli import main
from querylect.configs.load import load_config
from querylect.doctor import checks
from querylect.doctor.checks import Finding
from querylect.doctor.memory import memory

from ..command import programs
from ..wandb_server import KEY

pytestmark = pytest.mark.server

HF_TOKEN = "hf_" + "t" * 34


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_a_machine_with_gpus(tmp_path, monkeypatch):
    programs(tmp_path / "bin", **{"nvidia-smi": "#!/bin/sh\necho 580.65.06; echo 580.65.06"})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    devices = {
        "torch": {"cuda": "13.0", "gpus": [["NVIDIA H100", 79.6], ["NVIDIA H100", 79.6]], "bf16": True},
        "faiss": {"gpus": 2},
    }
    monkeypatch.setattr(checks, "PROBE", f"print({json.dumps(json.dumps(devices))})")
    findings = by_name(checks.machine(tmp_path, checks.probe()))
    assert findings["driver"].observed == "NVIDIA 580.65.06, 2 GPUs"
    assert findings["torch"].observed.endswith("CUDA 13.0: NVIDIA H100 (80 GiB), NVIDIA H100 (80 GiB)")
    assert (findings["bf16"].state, findings["bf16"].observed) == ("ok", "the GPU is faster in it than in float32")
    assert findings["faiss"].observed.endswith("on 2 GPUs")


def test_a_machine_whose_torch_ends_the_process_and_without_a_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(checks, "PROBE", "import os; os._exit(134)")
    findings = by_name(checks.machine(tmp_path / "not" / "yet", checks.probe()))
    assert findings["driver"].state == "missing"
    assert "exit code 134" in findings["torch"].observed
    assert findings["faiss"].state == "missing"
    assert "bf16" not in findings
    assert str(tmp_path) in findings["disk"].observed


def test_a_cluster_by_its_partitions(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert checks._slurm().observed == "no sbatch in PATH"
    programs(tmp_path / "bin", sbatch="exit 0")
    programs(tmp_path / "bin", sinfo="echo 'gpu*'; echo cpu")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert checks._slurm().observed == "partitions: gpu*, cpu (* is the default)"
    programs(tmp_path / "bin", sinfo="echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    assert (checks._slurm().state, "Unable to contact" in checks._slurm().observed) == ("missing", True)


GIB = 2**30
H100 = ["NVIDIA H100", 79.2]


@pytest.mark.parametrize(
    ("name", "gpus", "state", "fact", "remedy"),
    [
        ("paper_bm25", [H100] * 8, "ok", "on 8 GPUs with ZeRO-2", ""),
        ("paper_bm25", [H100], "failed", "on 1 GPU,", "policy.lora={}"),
        ("demo", [["small", 12.0]], "ok", "on 1 GPU,", ""),
        ("paper_bm25", [], "ok", "those of slurm/grpo_bm25.sh have 79 GiB each", ""),
        ("demo", [], "ok", "30.0 GiB are free", ""),
    ],
)
def test_the_memory_of_a_run_against_this_machine_or_the_gpus_of_its_job(name, gpus, state, fact, remedy):
    finding = memory(load_config(name, []), {"gpus": gpus, "bf16": True}, 30 * GIB)
    assert finding.state == state
    assert fact in f"{finding.observed}; {finding.expected}"
    assert remedy in finding.remedy


@pytest.mark.parametrize(("changes", "code"), [([], 0), (["policy.model=Qwen/Qwen3-32B"], 2)])
def test_the_memory_of_a_run_on_gpus_that_are_not_here(capsys, monkeypatch, changes, code):
    """This machine is not probed."""
    monkeypatch.setattr(checks, "probe", lambda: pytest.fail("the machine was probed"))
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "paper_contriever", *changes, "--gpus", "8", "--gpu-memory", "80", "--json"])
    assert (ended.value.code or 0) == code
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert bool(finding["remedy"]) == (code == 2)
    assert "GiB per GPU on 8 GPUs" in finding["observed"]


def test_a_dry_run_of_training_says_what_memory_it_takes_and_stays_a_config(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["train", "paper_bm25", "rollout.vllm.gpu_memory_utilization=0.6", "--dry-run"])
    assert not ended.value.code
    stdout = capsys.readouterr().out
    (tmp_path / "dry-run.yaml").write_text(stdout)
    assert load_config(str(tmp_path / "dry-run.yaml"), []).rollout.vllm.gpu_memory_utilization == 0.6
    comments = [line for line in stdout.splitlines() if line.startswith("#")]
    assert comments[0].startswith("# memory: ")
    assert "have 79 GiB each" in comments[0]
    assert "rollout.vllm.gpu_memory_utilization" in comments[-1]


@pytest.mark.slow
def test_the_command_on_this_machine_shows_no_token(tmp_path):
    """The real torch and FAISS, in one child; no module of the working folder is imported."""
    for module in ("json", "torch", "wandb"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    command = Path(sys.executable).with_name("querylect")
    logins = {"WANDB_API_KEY": KEY, "HF_TOKEN": HF_TOKEN, "HOME": str(tmp_path)}
    done = subprocess.run(
        [command, "doctor", "--json"],
        capture_output=True, text=True, env=os.environ | logins, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "imported").exists()
    report = json.loads(done.stdout)
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert report["ready"] is True
    assert findings["torch"]["state"] == findings["faiss"]["state"] == "ok"
    for secret in (KEY, HF_TOKEN):
        assert secret not in done.stdout + done.stderr
