"""Whether the memory that a run is estimated to need is there: here, or on the GPUs that its Slurm script asks for."""

from collections.abc import Sequence
from typing import Any, Literal

from ..configs.schema import RunConfig
from ..slurm.requests import request_of
from ..train.memory_advice import remedies
from ..train.memory_estimate import GIB, H100_GIB, HEADROOM, Estimate, Layout, estimate
from ..train.model_shape import ModelShape, shape_of
from .findings import Finding

NAME = "memory"


def memory(config: RunConfig, accelerator: dict[str, Any], available: int) -> Finding:
    """Against the GPUs of this machine where there are some (`accelerator`: what torch says of them), else against its
    memory of `available` bytes, and where that is too little against the job script of the config."""
    shape = shape_of(config.policy.model)
    if shape is None:
        said = f"not estimated: nothing says how large policy.model {config.policy.model!r} is"
        return Finding("config", NAME, "missing", said, "give a folder with config.json, or a name with its size")
    gpus, fast = accelerator.get("gpus", []), bool(accelerator.get("bf16", False))
    if gpus:
        smallest = min(size for _, size in gpus)
        return _finding(config, shape, _layouts(config, len(gpus), smallest, fast), "this machine's")
    here = estimate(config, shape, Layout(gpu_gib=None, bfloat16=fast))
    if config.rollout.engine == "transformers" and here.fits(available):
        return Finding("config", NAME, "ok", f"{here.lines()[0]}; {available / GIB:.1f} GiB are free")
    return _finding(config, shape, [slurm_layout(config)], f"those of slurm/{request_of(config).script}.sh,")


def slurm_layout(config: RunConfig, script: str | None = None) -> Layout:
    """The processes for which a job script (None: that of the config's retriever) asks, on H100s."""
    request = request_of(config, script)
    return Layout(request.processes, request.zero, H100_GIB)


def memory_lines(config: RunConfig) -> list[str]:
    """The estimate on the GPUs that the job script of the config asks for, for people. The device is not looked at."""
    shape = shape_of(config.policy.model)
    if shape is None:
        return [f"memory: not estimated, since nothing says how large policy.model {config.policy.model!r} is"]
    layout, script = slurm_layout(config), request_of(config).script
    expected = estimate(config, shape, layout)
    first, *parts = expected.lines()
    verdict = f"fits {_room(layout)}" if expected.fits() else f"too much for {_room(layout)}"
    lines = [f"memory of slurm/{script}.sh, estimated: {first}; {verdict}", *(f"  {part}" for part in parts)]
    return lines if expected.fits() else [*lines, f"  {_advice(config, shape, layout)}"]


def _layouts(config: RunConfig, count: int, size: float, fast: bool) -> list[Layout]:
    """The ways in which a run can be started on the GPUs of one machine, the simplest first."""
    stages: Sequence[Literal[0, 2, 3]] = (0, 2) if config.rollout.engine != "transformers" else (0, 2, 3)
    several = [Layout(count, stage, size, fast) for stage in stages if stage == 0 or config.policy.lora is None]
    return [Layout(1, 0, size, fast), *(several if count > 1 else ())]


def _finding(config: RunConfig, shape: ModelShape, layouts: list[Layout], whose: str) -> Finding:
    tried: list[Estimate] = [estimate(config, shape, layout) for layout in layouts]
    fitting = next((one for one in tried if one.fits()), None)
    if fitting is not None:
        return Finding("config", NAME, "ok", f"{fitting.lines()[0]}; {whose} fit: {_room(fitting.layout)}")
    least = min(tried, key=lambda one: one.peak)
    said = f"{least.lines()[0]}; {whose} have {_room(least.layout)}"
    return Finding("config", NAME, "needed", said, _advice(config, shape, least.layout))


def _room(layout: Layout) -> str:
    return f"{layout.gpu_gib or 0:.0f} GiB each, of which {HEADROOM:.0%} may be taken"


def _advice(config: RunConfig, shape: ModelShape, layout: Layout) -> str:
    changes, after = remedies(config, shape, layout)
    if not changes:
        return "take a smaller policy.model, or larger GPUs"
    outcome = "" if after.fits() else ", still too much: take a smaller policy.model, or more and larger GPUs"
    return f"{', '.join(changes)}: {after.peak / GIB:.1f} GiB per GPU{outcome}"
