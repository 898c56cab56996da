"""What produced a result: package versions, the machine, and the git state of the sources."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

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
    return {package: number for package in packages if (number := _installed_version(package)) is not None}


@cache
def _installed_version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


class Start(TypedDict):
    """The context of one start of a run that its settings do not record."""

    step: int
    """The last step kept from before."""
    time: str
    versions: dict[str, str]
    git: dict[str, Any]
    machine: dict[str, object]
    environment: dict[str, object]


def this_start(step: int, environment: Mapping[str, object]) -> Start:
    """The context of this start."""
    keys = ("name", "corpus_size", "corpus_hash", "index_hash", "settings_hash")
    return {
        "step": step,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_state(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "gpus": _gpus()},
        "environment": {name: environment[name] for name in keys if name in environment},
    }


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")  # already imported in a training process
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def git_state() -> dict[str, Any]:
    """Git state of the working directory, and of this package's source if that is a checkout.

    Each is a commit, a branch and `dirty`: whether tracked files differ from the commit, None if git does not say.
    None instead where there is no git or no repository.
    """
    package = Path(__file__).parent
    # site-packages inside another checkout do not belong to that checkout's sources
    tracked = _git(package, "ls-files", "--error-unmatch", Path(__file__).name) is not None
    return {"directory": _state(Path()), "package": _state(package) if tracked else None}


def _state(folder: Path) -> dict[str, Any] | None:
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": None if changed is None else bool(changed),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None if it cannot run or fails."""
    command = ["git", "-c", "core.fsmonitor=false", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
