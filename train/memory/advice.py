"""Suggest changes to a run that does not fit, by estimating candidate settings one after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TypeVar

from ...configs.section import Section
from .estimate import GIB, HEADROOM, MemoryEstimate, MemoryPlanner, ProcessLayout, longest_tree

T = TypeVar("T")
AnySection = TypeVar("AnySection", bound=Section)

NODE_GPUS = 8
"""Number of GPUs that is suggested for a run."""
LEAST_GAIN = 0.01
"""Minimum saving, as a share of the peak, for a change to be suggested."""


@dataclass(frozen=True, slots=True)
class _Change:
    """One change that may help."""

    label: str
    planner: Callable[[MemoryPlanner], MemoryPlanner]
    layout: Callable[[ProcessLayout], ProcessLayout]

    @property
    def setting(self) -> str:
        """What it changes; a later change of the same replaces an earlier one."""
        return self.label.partition("=")[0]


def remedies(planner: MemoryPlanner, layout: ProcessLayout) -> tuple[list[str], MemoryEstimate]:
    """Changes that make a run fit its GPUs, or bring it as close as possible, and the resulting estimate.

    Order: changes that only cost time, then those that need more GPUs, then those that change what is learned.
    Where the run then fits, changes that it fits without are dropped.
    """

    def after(changes: Sequence[_Change]) -> MemoryEstimate:
        changed, placed = planner, layout
        for change in changes:
            changed, placed = change.planner(changed), change.layout(placed)
        return changed.estimate(placed)

    applied: list[_Change] = []
    current = after(applied)
    for change in _changes(planner, layout):
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


def _changes(planner: MemoryPlanner, layout: ProcessLayout) -> Iterator[_Change]:
    """Each applicable remedy."""

    def setting(name: str, value: object) -> Callable[[MemoryPlanner], MemoryPlanner]:
        return lambda changed: _with_setting(changed, name, value)

    def same(unchanged: T) -> T:
        return unchanged

    rollout, train, full = planner.rollout, planner.train, planner.policy.lora is None
    if train.questions_per_micro_batch > 1:
        yield _Change("train.questions_per_micro_batch=1", setting("train.questions_per_micro_batch", 1), same)
    if not planner.checkpoints_layers(layout):
        yield _Change("train.gradient_checkpointing=true", setting("train.gradient_checkpointing", True), same)
    if train.packing is False:
        yield _Change("train.packing=auto", setting("train.packing", "auto"), same)
    tokens, _, path = longest_tree(rollout, train)
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
    for name, value in _vllm_settings(planner, layout):
        yield _Change(f"{name}={value:g}", setting(name, value), same)
    if full and layout.gpu_gib and not layout.zero:
        count = max(NODE_GPUS, layout.processes)
        label = f"DeepSpeed ZeRO-2 on {count} GPUs (accelerate launch, docs/scale.md; slurm/grpo_nodes.sh)"
        yield _Change(label, same, lambda placed: replace(placed, processes=count, zero=2))
    if full and layout.gpu_gib and layout.zero != 3:
        gpus = max(NODE_GPUS, layout.processes)
        label = f"DeepSpeed ZeRO-3 on {gpus} GPUs (configs/deepspeed/zero3.json, SHARDING=zero3 in a Slurm job)"
        yield _Change(label, same, lambda placed: replace(placed, processes=gpus, zero=3))
    for divisor in (2, 4, 8):
        budget = rollout.max_new_tokens
        reduced = (
            max(1, budget // divisor) if isinstance(budget, int) else [max(1, tokens // divisor) for tokens in budget]
        )
        yield _Change(f"rollout.max_new_tokens={reduced}", setting("rollout.max_new_tokens", reduced), same)
    if full:
        yield _Change("policy.lora={} (adapters instead of all weights)", setting("policy.lora", {}), same)


def _vllm_settings(planner: MemoryPlanner, layout: ProcessLayout) -> Iterator[tuple[str, int | float]]:
    """The smallest share of the GPU with which vLLM starts and caches 0.3 bytes for each parameter, at a larger
    tensor_parallel_size where its weights take too much of one GPU."""
    chosen = planner.rollout.vllm
    if planner.rollout.engine != "vllm" or layout.gpu_gib is None:
        return
    for parallel in (chosen.tensor_parallel_size * factor for factor in (1, 2, 4, 8)):
        name = "rollout.vllm.tensor_parallel_size"
        least = _with_setting(planner, name, parallel).vllm_minimum(layout)
        share = ceil(100 * (least + 0.3 * planner.shape.parameters / parallel) / (layout.gpu_gib * GIB)) / 100
        if share <= HEADROOM and layout.processes % parallel == 0:
            if parallel != chosen.tensor_parallel_size:
                yield name, parallel
            lacks = least > chosen.gpu_memory_utilization * layout.gpu_gib * GIB
            if lacks or share < chosen.gpu_memory_utilization:
                yield "rollout.vllm.gpu_memory_utilization", max(share, 0.1)
            return


def _with_setting(planner: MemoryPlanner, name: str, value: object) -> MemoryPlanner:
    """The planner of the run with one setting changed; for max_new_tokens, max_prompt_tokens shrinks by the tokens
    saved."""
    section, *path = name.split(".")
    if section == "policy":
        return replace(planner, policy=_changed(planner.policy, path, value))
    if section == "train":
        return replace(planner, train=_changed(planner.train, path, value))
    rollout = _changed(planner.rollout, path, value)
    if path == ["max_new_tokens"]:
        turns = len(rollout.branching)
        freed = planner.rollout.earlier_tokens(turns) - rollout.earlier_tokens(turns)
        rollout = _changed(rollout, ["max_prompt_tokens"], max(16, rollout.max_prompt_tokens - freed))
    return replace(planner, rollout=rollout)


def _changed(section: AnySection, path: Sequence[str], value: object) -> AnySection:
    """A section with the setting at `path` changed and everything validated."""
    plain = section.model_dump()
    inner = plain
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return type(section).model_validate(plain)
