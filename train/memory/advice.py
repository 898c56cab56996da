"""Suggest changes to a run that does not fit, by estimating candidate settings one after the other."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from ...configs.schema import RunConfig
from .estimate import GIB, MemoryEstimate, ProcessLayout, estimate
from .model_shape import ModelShape

T = TypeVar("T")

NODE_GPUS = 8
"""Number of GPUs that is suggested for a run."""
LEAST_GAIN = 0.01
"""Minimum saving, as a share of the peak, for a change to be suggested."""


def remedies(config: RunConfig, shape: ModelShape, layout: ProcessLayout) -> tuple[list[str], MemoryEstimate]:
    """Changes that make a run fit its GPUs, or bring it as close as possible, and the resulting estimate.

    Order: changes that only cost time, then those that need more GPUs, then those that change what is learned.
    """
    current = estimate(config, shape, layout)
    applied: list[str] = []
    for label, changed, placed in _changes(config, shape, layout):
        if current.fits():
            break
        candidate = estimate(changed(config), shape, placed(layout))
        if candidate.peak < (1 - LEAST_GAIN) * current.peak:
            current, config, layout = candidate, changed(config), placed(layout)
            applied = [*(old for old in applied if old.partition("=")[0] != label.partition("=")[0]), label]
    return applied, current


def _changes(
    config: RunConfig, shape: ModelShape, layout: ProcessLayout
) -> Iterator[tuple[str, Callable[[RunConfig], RunConfig], Callable[[ProcessLayout], ProcessLayout]]]:
    """(description, change of the config, change of the layout) of each applicable remedy."""

    def setting(name: str, value: object) -> Callable[[RunConfig], RunConfig]:
        return lambda run: _with_setting(run, name.split("."), value)

    def same(unchanged: T) -> T:
        return unchanged

    rollout, full = config.rollout, config.policy.lora is None
    if config.train.questions_per_micro_batch > 1:
        yield "train.questions_per_micro_batch=1", setting("train.questions_per_micro_batch", 1), same
    if not config.train.gradient_checkpointing:
        yield "train.gradient_checkpointing=true", setting("train.gradient_checkpointing", True), same
    if config.train.packing is False:
        yield "train.packing=auto", setting("train.packing", "auto"), same
    if rollout.engine == "vllm" and not rollout.vllm.enable_sleep_mode:
        yield "rollout.vllm.enable_sleep_mode=true", setting("rollout.vllm.enable_sleep_mode", True), same
    if rollout.engine == "vllm" and layout.gpu_gib:
        minimum = (2.3 * shape.parameters / rollout.vllm.tensor_parallel_size + 3 * GIB) / (layout.gpu_gib * GIB)
        share = round(max(minimum, 0.1), 2)
        if share < rollout.vllm.gpu_memory_utilization:
            name = "rollout.vllm.gpu_memory_utilization"
            yield f"{name}={share:g}", setting(name, share), same
    if full and layout.gpu_gib and not layout.zero:
        count = max(NODE_GPUS, layout.processes)
        label = f"DeepSpeed ZeRO-2 on {count} GPUs (accelerate launch, docs/scale.md; slurm/grpo_nodes.sh)"
        yield label, same, lambda placed: replace(placed, processes=count, zero=2)
    for divisor in (2, 4, 8):
        budget = rollout.max_new_tokens
        reduced = (
            max(1, budget // divisor) if isinstance(budget, int) else [max(1, tokens // divisor) for tokens in budget]
        )
        yield f"rollout.max_new_tokens={reduced}", setting("rollout.max_new_tokens", reduced), same
    if full:
        yield "policy.lora={} (adapters instead of all weights)", setting("policy.lora", {}), same


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
