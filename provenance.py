"""What produced a result: package versions, the machine, and the git state of the working directory."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .version import __version__

PACKAGES = (
    "torch", "transformers", "trl", "peft", "sentence-transformers", "bm25s", "faiss-cpu", "faiss-gpu", "vllm",
    "deepspeed", "gepa", "numpy", "scipy", "matplotlib",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of this project, Python and those of `PACKAGES` that are installed."""
    return {"querylect": __version__, "python": platform.python_version(), **installed_versions(PACKAGES)}


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those of the packages that are installed."""
    installed = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


Start = dict[str, Any]
"""What the settings of a run do not record of one start of it, as plain data; `step` is the last one kept from before.
"""


def this_start(step: int, environment: Mapping[str, object]) -> Start:
    """The context of this start."""
    keys = ("name", "corpus_size", "corpus_hash", "index_hash", "settings_hash")
    torch = sys.modules.get("torch")  # imported already in a training process
    gpus = torch.cuda.device_count() if torch is not None and torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(index) for index in range(gpus)] if torch is not None else []
    return {
        "step": step,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_state(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "gpus": names},
        "environment": {name: environment[name] for name in keys if name in environment},
    }


def git_state() -> dict[str, Any] | None:
    """Commit, branch and `dirty` (whether tracked files differ from the commit) of the working directory's repository.

    None where there is no git, no repository or no commit.
    """
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "branch": _git("rev-parse", "--abbrev-ref", "HEAD"), "dirty": changed != ""}


def _git(*arguments: str) -> str | None:
    """What git prints; None if it cannot run or fails."""
    command = ["git", "-c", "core.fsmonitor=false", "--no-optional-locks", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
