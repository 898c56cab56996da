"""Processor, memory, disk, GPUs, and the libraries that compute on them.

torch and FAISS are asked in a child process: their import takes seconds, and a broken driver may end the process.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..provenance import installed_versions
from ..sources import install_command
from .findings import Finding

_GROUP = Path("/sys/fs/cgroup")
"""The control group of a container or a Slurm job (version 2): limit, use and its break-down."""

PROBE_SECONDS = 120.0
"""How long the child may take; on a machine under load an import of torch takes half a minute."""

PROBE = """
import json
report = {}
try:
    import torch
    from querylect.rollouts.policy import has_fast_bfloat16
    cuda = torch.cuda.is_available()
    report["torch"] = {
        "cuda": torch.version.cuda,
        "gpus": [
            [torch.cuda.get_device_name(gpu), torch.cuda.get_device_properties(gpu).total_memory / 2**30]
            for gpu in range(torch.cuda.device_count() if cuda else 0)
        ],
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


def start_probe() -> subprocess.Popen[str]:
    """Start asking torch and FAISS; `answer` waits for what they say."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-P", "-c", PROBE], stdout=pipe, stderr=subprocess.DEVNULL, text=True)


def machine(output: Path, probed: dict[str, Any]) -> list[Finding]:
    """What there is to compute with; `output` is where runs are written, `probed` what the probe answered."""
    findings = [*_host(output), _driver(), _torch(probed)]
    if torch := probed.get("torch"):
        device, verb = "GPU" if torch["gpus"] else "CPU", "is" if torch["bf16"] else "is not"
        detail = f"the {device} {verb} faster in it than in float32"
        findings.append(Finding("accelerator", "bf16", "ok" if torch["bf16"] else "missing", detail))
    return [*findings, _faiss(probed), _package("vllm", install_command("gpu")), _deepspeed()]


def answer(probe: subprocess.Popen[str]) -> dict[str, Any]:
    """What torch and FAISS say of themselves: `torch` and `faiss`, or `torch_error` and `faiss_error`."""
    try:
        printed, _ = probe.communicate(timeout=PROBE_SECONDS)
        return dict(json.loads(printed.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.communicate()
        return {"torch_error": f"no answer in {PROBE_SECONDS:g} s", "faiss_error": "not asked"}
    except (ValueError, IndexError):
        ended = f"the import ended the process (exit code {probe.returncode})"
        return {"torch_error": ended, "faiss_error": "not asked"}


def _host(output: Path) -> list[Finding]:
    new_enough = sys.version_info >= (3, 11)
    folder = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    free, memory = shutil.disk_usage(folder).free / 2**30, available_bytes() / 2**30
    writable = os.access(folder, os.W_OK)
    warning = "" if free >= 10 else "checkpoints may not fit: free some space, or choose another output=…"
    return [
        Finding(
            "machine", "python", "ok" if new_enough else "missing", platform.python_version(),
            "" if new_enough else "querylect needs Python 3.11 or newer",
        ),
        Finding("machine", "cores", "ok", f"{len(os.sched_getaffinity(0))}"),
        Finding("machine", "memory", "ok", f"{memory:.1f} GiB free"),
        Finding(
            "machine", "disk", "ok" if writable and not warning else "missing", f"{free:.1f} GiB free in {folder}",
            warning if writable else f"{folder} cannot be written to: choose another output=…",
        ),
    ]  # fmt: skip


def _driver() -> Finding:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return Finding("accelerator", "driver", "missing", "nvidia-smi does not answer: no NVIDIA driver, or no GPU")
    return Finding("accelerator", "driver", "ok", f"NVIDIA {printed[0]}, {len(printed)} GPUs" if printed else "NVIDIA")


def _torch(probed: dict[str, Any]) -> Finding:
    installed = _version("torch")
    if installed is None:
        return Finding("accelerator", "torch", "missing", "not installed", install_command("cpu"))
    if "torch" not in probed:
        return Finding("accelerator", "torch", "missing", f"{installed} cannot be imported: {probed['torch_error']}")
    torch = probed["torch"]
    if torch["gpus"]:
        names = ", ".join(f"{name} ({memory:.0f} GiB)" for name, memory in torch["gpus"])
        return Finding("accelerator", "torch", "ok", f"{installed}, CUDA {torch['cuda']}: {names}")
    why = "built without CUDA" if torch["cuda"] is None else f"built for CUDA {torch['cuda']}, and it sees no GPU"
    return Finding("accelerator", "torch", "ok", f"{installed}, on the CPU alone ({why})")


def _faiss(probed: dict[str, Any]) -> Finding:
    installed = [f"{name} {number}" for name in ("faiss-cpu", "faiss-gpu") if (number := _version(name))]
    if "faiss" not in probed:
        detail = "not installed" if not installed else f"{installed[0]} cannot be imported: {probed['faiss_error']}"
        remedy = f"{install_command('cpu')}; for GPUs {install_command('gpu')}"
        return Finding("accelerator", "faiss", "missing", detail, remedy)
    gpus = probed["faiss"]["gpus"]
    device = f"on {gpus} GPUs" if gpus else "on the CPU"
    return Finding("accelerator", "faiss", "ok", f"{', '.join(installed) or 'of unknown origin'}, {device}")


def _deepspeed() -> Finding:
    finding = _package("deepspeed", install_command("deepspeed"))
    if finding.state == "ok" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        detail = f"{finding.detail}, and there is no C++ compiler for its communication"
        return Finding("accelerator", "deepspeed", "missing", detail, "on Debian: apt-get install g++")
    return finding


def _package(name: str, remedy: str) -> Finding:
    installed = _version(name)
    if installed is None or find_spec(name) is None:
        return Finding("accelerator", name, "missing", "not installed", remedy)
    return Finding("accelerator", name, "ok", installed)


def _version(name: str) -> str | None:
    return installed_versions([name]).get(name)


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
