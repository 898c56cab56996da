"""Compares a run's estimated memory with the GPUs of a machine, or with those that its Slurm script requests."""

import os
from dataclasses import replace
from typing import Any

from ..configs.schema import PolicyConfig, RunConfig
from ..slurm.job_env import SHARDINGS, request_of
from ..train.arguments import check_combinations, trains_bfloat16
from ..train.memory import GIB, H100_GIB, HEADROOM, ModelShape, ProcessLayout, estimate, shape_of
from .checks import Finding

NAME = "memory of the run"
USABLE = H100_GIB / 80
"""GiB that can be allocated of each GB in the name of a card."""


def memory(config: RunConfig, torch: dict[str, Any], available: int = 0) -> Finding:
    """Compare with the GPUs in the report of `torch` if there are some, else with `available` bytes of memory, and if
    these are too few with the job script of the config."""
    shape = shape_of(config.policy.model)
    if shape is None:
        return _unknown(config)
    gpus, fast = torch.get("gpus", []), bool(torch.get("bf16", False))
    if gpus:
        smallest = min(size for _, size in gpus)
        return _finding(config, shape, _layouts(config.policy, len(gpus), smallest, fast), "the GPUs")
    local = estimate(config, shape, ProcessLayout(gpu_gib=None, bfloat16=fast))
    if config.rollout.engine == "transformers" and local.fits(available):
        return Finding(NAME, "ok", f"{local.lines()[0]}; {available / GIB:.1f} GiB are free")
    script, layout = request_of(config.env, config.policy)
    return _finding(config, shape, [layout], f"those of slurm/{script}.sh")


def preview_training(config: RunConfig) -> list[str]:
    """Check settings against each other and the processes that train: those of a launcher, one if one GPU is enough,
    else those of the config's job script. Returns the estimate for that script as text. Raises ConfigError."""
    script, layout = request_of(config.env, config.policy)
    shape = shape_of(config.policy.model)
    alone = shape is not None and estimate(config, shape, ProcessLayout()).fits()
    launched = os.environ.get("WORLD_SIZE")
    processes = int(launched or (1 if alone else layout.processes))
    sharded = launched is None and not alone and layout.zero
    check_combinations(config.policy, config.rollout, config.train, processes, sharded)
    if shape is None:
        return [f"memory: {_unknown(config).observed}"]
    finding = _finding(config, shape, [layout], f"those of slurm/{script}.sh")
    parts = [f"  {part}" for part in estimate(config, shape, layout).lines()[1:]]
    remedy = [f"  {finding.remedy}"] if finding.remedy else []
    return [f"memory: {finding.observed}; {finding.expected}", *parts, *remedy]


def _unknown(config: RunConfig) -> Finding:
    observed = f"not estimated: nothing says how large policy.model {config.policy.model!r} is"
    return Finding(NAME, "missing", observed, "a folder with config.json, or the name of a common model")


def _layouts(policy: PolicyConfig, count: int, size: float, fast: bool) -> list[ProcessLayout]:
    """How a run can be started on the GPUs of one machine, the simplest first."""
    layouts = [
        replace(layout, processes=count, gpu_gib=size, bfloat16=fast)
        for layout in SHARDINGS.values()
        if layout.zero or not trains_bfloat16(policy)
    ]
    return [replace(layouts[0], processes=1), *(layouts if count > 1 else [])]


def _finding(config: RunConfig, shape: ModelShape, layouts: list[ProcessLayout], owner: str) -> Finding:
    estimates = [estimate(config, shape, layout) for layout in layouts]
    fitting = [candidate for candidate in estimates if candidate.fits()]
    best = fitting[0] if fitting else min(estimates, key=lambda candidate: candidate.peak)
    available = f"{owner} have {best.layout.gpu_gib or 0:.0f} GiB each, of which {HEADROOM:.0%} may be taken"
    remedy = "" if fitting else best.advice()
    return Finding(NAME, "ok" if fitting else "failed", best.lines()[0], available, remedy)
