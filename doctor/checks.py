"""Checks of this machine: Python, memory, disk, GPUs, the libraries that compute on them, extras and Slurm.

torch and FAISS are imported in a child process: that takes seconds, and a broken driver may end the process.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from ..errors import in_one_line
from ..provenance import installed_versions
from ..sources import install_command, known_extras

PROBE_SECONDS = 120.0
"""Deadline of the child; on a machine under load the import of torch takes half a minute."""
GPU_SECONDS = 300.0
"""Deadline of a check on the GPU; the first call of FlexAttention compiles it."""
DISK_GIB = 10
"""Free space below which checkpoints may not fit."""
PROBE = """
import json
report = {}
try:
    import torch
    from querylect.rollouts.policy import has_fast_bfloat16
    gpus = [torch.cuda.get_device_properties(gpu) for gpu in range(torch.cuda.device_count())]
    report["torch"] = {
        "cuda": torch.version.cuda,
        "gpus": [[gpu.name, gpu.total_memory / 2**30] for gpu in gpus],
        "bf16": has_fast_bfloat16(),
    }
except Exception as error:
    report["torch_error"] = f"{type(error).__name__}: {error}"
try:
    import faiss
    report["faiss"] = {"gpus": faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0}
except Exception as error:
    report["faiss_error"] = f"{type(error).__name__}: {error}"
print(json.dumps(report))
"""

_GROUP = Path("/sys/fs/cgroup")
"""The control group of a container or a Slurm job (version 2): limit, use and its break-down."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    name: str
    state: Literal["ok", "missing", "failed"]
    """missing: not there, and needed for some purposes only."""
    observed: str
    expected: str = ""
    remedy: str = ""
    """What to do, as a command if there is requirement."""


def as_text(findings: list[Finding]) -> str:
    """The findings as lines, each with its remedy below."""
    width = max(len(finding.name) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        expected = f"; expected {finding.expected}" if finding.expected else ""
        lines.append(f"{finding.state:<8}{finding.name:<{width}}  {finding.observed}{expected}")
        if finding.remedy:
            lines.append(f"{'':<8}{'':<{width}}  → {finding.remedy}")
    return "\n".join(lines)


def probe() -> dict[str, Any]:
    """What the child reports: `torch` or `torch_error`, and `faiss` or `faiss_error`."""
    command = [sys.executable, "-P", "-c", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        reason = f"its import took over {PROBE_SECONDS:g} s"
    except (ValueError, IndexError):
        reason = f"its import ended the process (exit code {done.returncode})"
    return {"torch_error": reason, "faiss_error": "not imported"}


def gpu_findings(checks: Sequence[str] = ("gradients", "vllm")) -> list[Finding]:
    """The findings of doctor/gpu.py. Each check is a process with a deadline: one that crashes or hangs ends alone."""
    findings = []
    for name in checks:
        command = [sys.executable, "-P", "-m", "querylect.doctor.gpu", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=GPU_SECONDS)
            findings.append(Finding(**json.loads(done.stdout.splitlines()[-1])))
        except subprocess.TimeoutExpired:
            findings.append(Finding(name, "failed", f"no answer in {GPU_SECONDS:g} s"))
        except (ValueError, IndexError):
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            findings.append(Finding(name, "failed", f"its process ended (exit code {done.returncode}): {last[:300]}"))
    return findings


def machine(output: Path, report: dict[str, Any]) -> list[Finding]:
    """Findings about this machine; `output` is where runs are written, `report` that of the probe."""
    return [
        Finding("python", "ok", platform.python_version()),
        Finding("cores", "ok", str(len(os.sched_getaffinity(0)))),
        Finding("memory", "ok", f"{available_bytes() / 2**30:.1f} GiB free"),
        _disk(output),
        _driver(),
        *_torch(report),
        _faiss(report),
        _compiled("triton"),
        _compiled("deepspeed"),
        *extras(),
        _slurm(),
    ]


def available_bytes() -> int:
    """Bytes that can be taken without swapping: what the machine has free, or less where a control group says so."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    try:
        limit, used, details = (
            (_GROUP / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current", "stat")
        )
    except OSError:
        return free
    if not limit.strip().isdigit():
        return free
    cached = sum(int(line.split()[1]) for line in details.splitlines() if line.startswith("inactive_file "))
    return min(free, max(0, int(limit) - int(used) + cached))


def _disk(output: Path) -> Finding:
    folder = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    free, writable = shutil.disk_usage(folder).free / 2**30, os.access(folder, os.W_OK)
    observed = f"{free:.1f} GiB free in {folder}{'' if writable else ', which cannot be written to'}"
    if writable and free >= DISK_GIB:
        return Finding("disk", "ok", observed)
    return Finding("disk", "missing", observed, f"{DISK_GIB} GiB for checkpoints", "free some space, or set output=…")


def _driver() -> Finding:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        versions = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        versions = []
    if not versions:
        return Finding("driver", "missing", "nvidia-smi does not answer", "an NVIDIA driver and a GPU")
    return Finding("driver", "ok", f"NVIDIA {versions[0]}, {len(versions)} GPUs")


def _torch(report: dict[str, Any]) -> list[Finding]:
    if "torch" not in report:
        return [Finding("torch", "missing", report["torch_error"], remedy=install_command("cpu"))]
    torch, installed = report["torch"], version("torch")
    built = f"{installed}, CUDA {torch['cuda']}" if torch["cuda"] else f"{installed} without CUDA"
    gpus = ", ".join(f"{name} ({memory:.0f} GiB)" for name, memory in torch["gpus"]) or "no GPU"
    device, verb = "GPU" if torch["gpus"] else "CPU", "is" if torch["bf16"] else "is not"
    return [
        Finding("torch", "ok", f"{built}: {gpus}"),
        Finding("bf16", "ok" if torch["bf16"] else "missing", f"the {device} {verb} faster in it than in float32"),
    ]


def _faiss(report: dict[str, Any]) -> Finding:
    if "faiss" not in report:
        return Finding("faiss", "missing", report["faiss_error"], remedy=install_command("cpu"))
    ((name, number),) = list(installed_versions(["faiss-gpu", "faiss-cpu"]).items())[:1]
    gpus = report["faiss"]["gpus"]
    return Finding("faiss", "ok", f"{name} {number}, on {f'{gpus} GPUs' if gpus else 'the CPU'}")


def _compiled(package: str) -> Finding:
    """A package that compiles code when it runs."""
    installed = installed_versions([package]).get(package)
    compiler = any(map(shutil.which, ("g++", "c++", "clang++")))
    observed = f"{installed or 'not installed'}{'' if compiler else ', no C++ compiler'}"
    if installed and compiler:
        return Finding(package, "ok", observed)
    remedy = "apt-get install g++" if installed else install_command("gpu" if package == "triton" else package)
    return Finding(package, "missing", observed, remedy=remedy)


def extras() -> list[Finding]:
    """For each extra of this package: whether its requirements are installed in fitting versions."""
    findings = []
    for name, needed in sorted(known_extras().items()):
        if name == "dev":
            continue
        installed = installed_versions(requirement.name for requirement in needed)
        observed = ", ".join(
            f"{requirement.name} {installed.get(requirement.name, 'missing')}" for requirement in needed
        )
        unmet = [
            f"{requirement.name}{requirement.specifier}"
            for requirement in needed
            if requirement.name not in installed
            or not requirement.specifier.contains(installed[requirement.name], prereleases=True)
        ]
        if unmet:
            findings.append(Finding(f"extra {name}", "missing", observed, ", ".join(unmet), install_command(name)))
        else:
            findings.append(Finding(f"extra {name}", "ok", observed))
    return findings


def _slurm() -> Finding:
    if shutil.which("sbatch") is None:
        return Finding("slurm", "missing", "no sbatch in PATH")
    try:
        command = ["sinfo", "--noheader", "--format=%P"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("slurm", "missing", f"sinfo fails: {in_one_line(getattr(error, 'stderr', None) or error)}")
    return Finding("slurm", "ok", f"partitions: {', '.join(listed) or 'none'} (* is the default)")
