"""Compares a run's estimated memory with this machine, or with the GPUs that its Slurm script requests."""

import logging
import os
from dataclasses import replace
from typing import Any

from ..configs.schema import PolicyConfig, RunConfig
from ..slurm.preflight import capacity_of, warn_if_too_large
from ..slurm.requests import request_of
from ..train.arguments import check_combinations, trains_bfloat16
from ..train.memory.advice import remedies
from ..train.memory.estimate import GIB, MemoryEstimate, MemoryPlanner, ProcessLayout, planner_of
from ..train.memory.host import host_memory
from ..train.memory.model_shape import shape_of
from .findings import Finding

log = logging.getLogger(__name__)

NAME = "memory"


def memory(config: RunConfig, accelerator: dict[str, Any], available: int) -> Finding:
    """Compare with this machine's GPUs where there are some (`accelerator`: what torch reports), else with its
    `available` bytes of memory, and where these are too few with the job script of the config."""
    shape = shape_of(config.policy.model)
    if shape is None:
        detail = f"not estimated: nothing says how large policy.model {config.policy.model!r} is"
        return Finding("config", NAME, "missing", detail, "give a folder with config.json, or a name with its size")
    planner = planner_of(config, shape)
    gpus, fast = accelerator.get("gpus", []), bool(accelerator.get("bf16", False))
    if gpus:
        smallest = min(size for _, size in gpus)
        candidates = layouts(config.policy, len(gpus), smallest, fast)
        return _finding(planner, candidates, "this machine's")
    local = planner.estimate(ProcessLayout(gpu_gib=None, bfloat16=fast))
    if config.rollout.engine == "transformers" and local.fits(available):
        return Finding("config", NAME, "ok", f"{local.lines()[0]}; {available / GIB:.1f} GiB are free")
    request = request_of(config.env, config.policy)
    return _finding(planner, [request.layout], f"those of slurm/{request.script}.sh,")


def preview_training(config: RunConfig) -> list[str]:
    """Check settings against each other and the processes that train: those of a launcher, one where one GPU is
    enough, else those of the config's job script. Gives the estimate for that script, for people, and warns if it does
    not fit, and if only the script's DeepSpeed trains the config. The device is not looked at.

    Raises ConfigError.
    """
    request = request_of(config.env, config.policy)
    launched = os.environ.get("WORLD_SIZE")
    shape = shape_of(config.policy.model)
    planner = planner_of(config, shape) if shape is not None else None
    alone = planner is not None and planner.estimate(ProcessLayout()).fits()
    sharded = launched is None and not alone and request.layout.zero > 0
    check_combinations(config, int(launched or (1 if alone else request.layout.processes)), sharded)
    if sharded and trains_bfloat16(config.policy):
        log.warning(
            "policy.dtype is bfloat16 and all weights are trained: that needs the float32 copies of DeepSpeed ZeRO. "
            "slurm/%s.sh starts it (%s); elsewhere use accelerate launch with configs/deepspeed/zero%d.json",
            request.script,
            request.layout.description,
            request.layout.zero,
        )
    if planner is None:
        return [f"memory: not estimated, since nothing says how large policy.model {config.policy.model!r} is"]
    layout = request.layout
    expected = planner.estimate(layout)
    warn_if_too_large(expected)
    first, *parts = expected.lines()
    verdict = f"{'fits' if expected.fits() else 'does not fit'} {capacity_of(layout)}"
    lines = [f"memory of slurm/{request.script}.sh, estimated: {first}; {verdict}", *(f"  {part}" for part in parts)]
    host = host_memory(planner, layout)
    phase = max(host, key=lambda name: host[name])
    lines.append(f"  host memory of a node: {host[phase] / GIB:.1f} GiB, in the {phase}")
    return lines if expected.fits() else [*lines, f"  {advice(planner, layout)}"]


def layouts(policy: PolicyConfig, count: int, size: float, fast: bool) -> list[ProcessLayout]:
    """The ways in which a run can be started on the GPUs of one machine, the simplest first."""
    one = ProcessLayout(1, 0, size, fast)
    several = replace(one, processes=count)
    zero2, zero3 = replace(several, zero=2), replace(several, zero=3)
    if trains_bfloat16(policy):
        return [replace(one, zero=2), *((zero2, zero3) if count > 1 else ())]
    return [one, *((several, zero2, zero3, replace(several, fsdp=True)) if count > 1 else ())]


def _finding(planner: MemoryPlanner, candidates: list[ProcessLayout], owner: str) -> Finding:
    estimates: list[MemoryEstimate] = [planner.estimate(layout) for layout in candidates]
    fitting = next((candidate for candidate in estimates if candidate.fits()), None)
    if fitting is not None:
        return Finding("config", NAME, "ok", f"{fitting.lines()[0]}; {owner} fit: {capacity_of(fitting.layout)}")
    smallest = min(estimates, key=lambda candidate: candidate.peak)
    detail = f"{smallest.lines()[0]}; {owner} have {capacity_of(smallest.layout)}"
    return Finding("config", NAME, "needed", detail, advice(planner, smallest.layout))


def advice(planner: MemoryPlanner, layout: ProcessLayout) -> str:
    """The nearest settings that fit, and what they take."""
    changes, after = remedies(planner, layout)
    if not changes:
        return "take a smaller policy.model, or larger GPUs"
    outcome = "" if after.fits() else ", still too much: take a smaller policy.model, or more and larger GPUs"
    return f"{', '.join(changes)}: {after.peak / GIB:.1f} GiB per GPU{outcome}"
