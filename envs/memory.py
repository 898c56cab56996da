"""How much memory is available to this process."""

import os
from pathlib import Path

_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Limit, use and its break-down of the control group of a container or a Slurm job: version 2, version 1."""


def available_bytes() -> int:
    """Bytes that can be taken without swapping: what the machine has free, or less where a control group says so."""
    return min([_machine_free(), *(left for left in map(_group_free, _GROUPS) if left is not None)])


def _machine_free() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_free(group: tuple[str, str, str]) -> int | None:
    try:
        limit, used, details = (Path(name).read_text(encoding="ascii") for name in group)
    except OSError:
        return None
    if not limit.strip().isdigit():
        return None
    cached = sum(int(line.split()[1]) for line in details.splitlines() if line.startswith("inactive_file "))
    return max(0, int(limit) - int(used) + cached)
