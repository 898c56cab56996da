"""Compares a run's estimated memory with the GPUs of a machine, or with those that its Slurm script requests."""

import os
from dataclasses import replace
from typing import Any

from ..configs.schema import PolicyConfig, RunConfig
from ..slurm.requests import request_of
from ..train.arguments import check_combinations, trains_bfloat16
from ..train.memory.estimate import GIB, H100_GIB, HEADROOM, MemoryPlanner, ProcessLayout, advice, planner_of
from ..train.memory.model_shape import shape_of
from .findings import Finding

NAME = "memory"
_UNKNOWN = "not estimated: nothing says how large policy.model {!r} is"
USABLE = H100_GIB / 80
"""GiB that can be allocated of each GB in the name of a card."""


def memory(config: RunConfig, accelerator: dict[str, Any], available: int = 0) -> Finding:
    """Compare with the GPUs of `accelerator` (what torch reports) where there are some, else with `available` bytes of
    memory, and where these are too few with the job script of the config."""
    shape = shape_of(config.policy.model)
    if shape is None:
        detail = _UNKNOWN.format(config.policy.model)
        return Finding("config", NAME, "missing", detail, "give a folder with config.json, or a name with its size")
    planner = planner_of(config, shape)
    gpus, fast = accelerator.get("gpus", []), bool(accelerator.get("bf16", False))
    if gpus:
        smallest = min(size for _, size in gpus)
        return _finding(planner, _layouts(config.policy, len(gpus), smallest, fast), "the GPUs")
    local = planner.estimate(ProcessLayout(gpu_gib=None, bfloat16=fast))
    if config.rollout.engine == "transformers" and local.fits(available):
        return Finding("config", NAME, "ok", f"{local.lines()[0]}; {available / GIB:.1f} GiB are free")
    request = request_of(config.env, config.policy)
    return _finding(planner, [request.layout], f"those of slurm/{request.script}.sh")


def preview_training(config: RunConfig) -> list[str]:
    """Check settings against each other and the processes that train: those of a launcher, one where one GPU is
    enough, else those of the config's job script. Gives the estimate for that script, for people. Raises ConfigError.
    """
    request = request_of(config.env, config.policy)
    layout = request.layout
    shape = shape_of(config.policy.model)
    planner = planner_of(config, shape) if shape is not None else None
    alone = planner is not None and planner.estimate(ProcessLayout()).fits()
    launched = os.environ.get("WORLD_SIZE")
    processes = int(launched or (1 if alone else layout.processes))
    check_combinations(config, processes, launched is None and not alone and layout.zero > 0)
    if planner is None:
        return [f"memory: {_UNKNOWN.format(config.policy.model)}"]
    finding = _finding(planner, [layout], f"those of slurm/{request.script}.sh")
    return [
        f"memory: {finding.detail}",
        *(f"  {part}" for part in planner.estimate(layout).lines()[1:]),
        *([f"  {finding.remedy}"] if finding.remedy else []),
    ]


def _layouts(policy: PolicyConfig, count: int, size: float, fast: bool) -> list[ProcessLayout]:
    """The ways in which a run can be started on the GPUs of one machine, the simplest first."""
    single = ProcessLayout(1, 0, size, fast)
    several = replace(single, processes=count)
    zero2, zero3 = replace(several, zero=2), replace(several, zero=3)
    if trains_bfloat16(policy):
        return [replace(single, zero=2), *((zero2, zero3) if count > 1 else ())]
    return [single, *((several, zero2, zero3, replace(several, fsdp=True)) if count > 1 else ())]


def _finding(planner: MemoryPlanner, candidates: list[ProcessLayout], owner: str) -> Finding:
    estimates = [planner.estimate(layout) for layout in candidates]
    best = next((estimate for estimate in estimates if estimate.fits()), None) or min(
        estimates, key=lambda item: item.peak
    )
    size = f"{best.layout.gpu_gib or 0:.0f} GiB each, of which {HEADROOM:.0%} may be taken"
    detail = f"{best.lines()[0]}; {owner} have {size}"
    return (
        Finding("config", NAME, "ok", detail)
        if best.fits()
        else Finding("config", NAME, "needed", detail, advice(planner, best.layout))
    )
