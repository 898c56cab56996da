"""What a measurement was taken on."""

import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path


def describe(*packages: str) -> str:
    """Processor, cores, load and the versions of the packages (torch, transformers, trl), in one line."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    versions = ", ".join(f"{name} {version(name)}" for name in packages or ("torch", "transformers", "trl"))
    load = os.getloadavg()[0]
    return f"{cpu}, {os.cpu_count()} cores, load {load:.1f}; Python {platform.python_version()}, {versions}"


def seconds(call: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
