"""What a result was made with: versions of what decides the numbers, the machine, and the state of the sources."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from . import __version__

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "sentence-transformers",
    "bm25s",
    "faiss-cpu",
    "faiss-gpu-cu12",
    "vllm",
    "deepspeed",
    "numpy",
    "scipy",
    "matplotlib",
)


def versions() -> dict[str, str]:
    """Versions of this project, Python and the packages that decide the numbers, as far as they are installed."""
    found = {"querylect": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def this_start(step: int, environment: Mapping[str, Any]) -> dict[str, Any]:
    """What a start of a run goes by that its settings do not say. `step` is the last one that counts from before."""
    named = ("name", "corpus_size", "corpus_hash", "index_hash", "settings_hash")
    return {
        "step": step,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_state(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "gpus": _gpus()},
        "environment": {name: environment[name] for name in named if name in environment},
    }


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")  # who trains has imported it
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def git_state() -> dict[str, Any]:
    """Commit of the directory that the user is in, and of this package's source where that is a checkout.

    `dirty` is whether files that git knows differ from the commit, None where git does not say. None in the place of
    all of it where there is no git, or no repository.
    """
    package = Path(__file__).parent
    # site-packages inside of somebody's checkout are none of that checkout's sources
    ours = _git(package, "ls-files", "--error-unmatch", Path(__file__).name) is not None
    return {"directory": _state(Path()), "package": _state(package) if ours else None}


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
    """What git prints; None where it cannot be asked."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
