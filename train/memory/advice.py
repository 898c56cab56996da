"""Suggest changes to a run that does not fit, by estimating candidate settings one after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TypeVar

from ...configs.schema import RunConfig
from .estimate import (
    GIB,
    HEADROOM,
    MemoryEstimate,
    ProcessLayout,
    checkpoints_layers,
    estimate,
    longest_tree,
    vllm_minimum,
)
from .model_shape import ModelShape

T = TypeVar("T")

NODE_GPUS = 8
"""Number of GPUs that is suggested for a run."""
LEAST_GAIN = 0.01
"""Minimum saving, as a share of the peak, for a change to be suggested."""


@dataclass(frozen=True, slots=True)
class _Change:
    """One change that may help."""

    label: str
    config: Callable[[RunConfig], RunConfig]
    layout: Callable[[ProcessLayout], ProcessLayout]

    @property
    def setting(self) -> str:
        """What it changes; a later change of the same replaces an earlier one."""
        return self.label.partition("=")[0]


def remedies(config: RunConfig, shape: ModelShape, layout: ProcessLayout) -> tuple[list[str], MemoryEstimate]:
    """Changes that make a run fit its GPUs, or bring it as close as possible, and the resulting estimate.

    Order: changes that only cost time, then those that need more GPUs, then those that change what is learned. Of the
    changes that lead to a run that fits, those are left out without which it fits too.
    """

    def after(changes: Sequence[_Change]) -> MemoryEstimate:
        changed, placed = config, layout
        for change in changes:
            changed, placed = change.config(changed), change.layout(placed)
        return estimate(changed, shape, placed)

    applied: list[_Change] = []
    current = after(applied)
    for change in _changes(config, shape, layout):
        if current.fits():
            break
        changes = [*(old for old in applied if old.setting != change.setting), change]
        candidate = after(changes)
        saves = candidate.peak < (1 - LEAST_GAIN) * current.peak
        if candidate.vllm_lacks < current.vllm_lacks or (candidate.vllm_lacks == current.vllm_lacks and saves):
            applied, current = changes, candidate
    for change in list(applied) if current.fits() else ():
        fewer = [item for item in applied if item is not change]
        if (without := after(fewer)).fits():
            applied, current = fewer, without
    return [change.label for change in applied], current


def _changes(config: RunConfig, shape: ModelShape, layout: ProcessLayout) -> Iterator[_Change]:
    """Each applicable remedy."""

    def setting(name: str, value: object) -> Callable[[RunConfig], RunConfig]:
        return lambda run: _with_setting(run, name.split("."), value)

    def same(unchanged: T) -> T:
        return unchanged

    rollout, full = config.rollout, config.policy.lora is None
    if config.train.questions_per_micro_batch > 1:
        yield _Change("train.questions_per_micro_batch=1", setting("train.questions_per_micro_batch", 1), same)
    if not checkpoints_layers(config, shape, layout):
        yield _Change("train.gradient_checkpointing=true", setting("train.gradient_checkpointing", True), same)
    if config.train.packing is False:
        yield _Change("train.packing=auto", setting("train.packing", "auto"), same)
    tokens, _, path = longest_tree(config.rollout, config.train)
    for pieces in (2, 4, 8, 16):
        if tokens // pieces > path:
            limit = -(-tokens // pieces // 256) * 256
            name = "train.max_tokens_per_micro_batch"
            yield _Change(f"{name}={limit}", setting(name, limit), same)
    if rollout.engine == "transformers":
        for rows in (128, 64, 32, 16):
            if rows < rollout.micro_batch:
                yield _Change(f"rollout.micro_batch={rows}", setting("rollout.micro_batch", rows), same)
    if rollout.engine == "vllm" and not rollout.vllm.enable_sleep_mode:
        yield _Change("rollout.vllm.enable_sleep_mode=true", setting("rollout.vllm.enable_sleep_mode", True), same)
    for name, value in _vllm_settings(config, shape, layout):
        yield _Change(f"{name}={value:g}", setting(name, value), same)
    if full and layout.gpu_gib and not layout.zero:
        count = max(NODE_GPUS, layout.processes)
        label = f"DeepSpeed ZeRO-2 on {count} GPUs (accelerate launch, docs/scale.md; slurm/grpo_nodes.sh)"
        yield _Change(label, same, lambda placed: replace(placed, processes=count, zero=2))
    if full and layout.gpu_gib and layout.zero != 3:
        gpus = max(NODE_GPUS, layout.processes)
        label = f"DeepSpeed ZeRO-3 on {gpus} GPUs (configs/deepspeed/zero3.json, ZERO=3 in a Slurm job)"
        yield _Change(label, same, lambda placed: replace(placed, processes=gpus, zero=3))
    for divisor in (2, 4, 8):
        budget = rollout.max_new_tokens
        reduced = (
            max(1, budget // divisor) if isinstance(budget, int) else [max(1, tokens // divisor) for tokens in budget]
        )
        yield _Change(f"rollout.max_new_tokens={reduced}", setting("rollout.max_new_tokens", reduced), same)
    if full:
        yield _Change("policy.lora={} (adapters instead of all weights)", setting("policy.lora", {}), same)


def _vllm_settings(config: RunConfig, shape: ModelShape, layout: ProcessLayout) -> Iterator[tuple[str, int | float]]:
    """The smallest share of the GPU with which vLLM starts and caches 0.3 bytes for each parameter, at a larger
    tensor_parallel_size where its weights take too much of one GPU."""
    chosen = config.rollout.vllm
    if config.rollout.engine != "vllm" or layout.gpu_gib is None:
        return
    for parallel in (chosen.tensor_parallel_size * factor for factor in (1, 2, 4, 8)):
        name = "rollout.vllm.tensor_parallel_size"
        changed = _with_setting(config, name.split("."), parallel)
        least = vllm_minimum(changed, shape, layout)
        share = ceil(100 * (least + 0.3 * shape.parameters / parallel) / (layout.gpu_gib * GIB)) / 100
        if share <= HEADROOM and layout.processes % parallel == 0:
            if parallel != chosen.tensor_parallel_size:
                yield name, parallel
            lacks = least > chosen.gpu_memory_utilization * layout.gpu_gib * GIB
            if lacks or share < chosen.gpu_memory_utilization:
                yield "rollout.vllm.gpu_memory_utilization", max(share, 0.1)
            return


def _with_setting(config: RunConfig, path: list[str], value: object) -> RunConfig:
    """The config with one setting changed; for max_new_tokens, max_prompt_tokens shrinks by the tokens saved."""
    plain = config.model_dump()
    section = plain
    for part in path[:-1]:
        section = section[part]
    section[path[-1]] = value
    changed = RunConfig.model_validate(plain)
    if path[-1] == "max_new_tokens":
        turns = len(config.rollout.branching)
        freed = config.rollout.earlier_tokens(turns) - changed.rollout.earlier_tokens(turns)
        plain["rollout"]["max_prompt_tokens"] = max(16, config.rollout.max_prompt_tokens - freed)
        changed = RunConfig.model_validate(plain)
    return changed
