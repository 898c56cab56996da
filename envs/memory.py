"""How much memory is available to this process."""

from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")
"""The control group of a container or a Slurm job (version 2): limit, use and its break-down."""


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
