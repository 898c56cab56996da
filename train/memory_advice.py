"""What to change in a run that does not fit: settings, tried one after the other by their estimates."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..configs.schema import RunConfig
from .memory_estimate import GIB, Estimate, Layout, estimate
from .model_shape import ModelShape

NODE_GPUS = 8
"""GPUs of the node that a run is advised to take."""
LEAST_GAIN = 0.01
"""Share of the peak that a change must save to be worth its mention."""


def remedies(config: RunConfig, shape: ModelShape, layout: Layout) -> tuple[list[str], Estimate]:
    """Changes after which a run fits its GPUs, or comes as near to it as they bring it, and the estimate after them.

    Those that cost only time come first, then those that need more GPUs, then those that change what is learned.
    """
    now = estimate(config, shape, layout)
    applied: list[str] = []
    for said, changed, placed in _changes(config, shape, layout):
        if now.fits():
            break
        tried = estimate(changed(config), shape, placed(layout))
        if tried.peak < (1 - LEAST_GAIN) * now.peak:
            now, config, layout = tried, changed(config), placed(layout)
            applied = [*(one for one in applied if one.partition("=")[0] != said.partition("=")[0]), said]
    return applied, now


def _changes(config: RunConfig, shape: ModelShape, layout: Layout) -> Iterator[tuple[str, Any, Any]]:
    """(in words, change of the config, change of the layout) of each remedy there is."""

    def setting(name: str, value: Any) -> Any:
        return lambda run: _with(run, name.split("."), value)

    def same(unchanged: Any) -> Any:
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
        least = (2.3 * shape.parameters / rollout.vllm.tensor_parallel_size + 3 * GIB) / (layout.gpu_gib * GIB)
        share = round(max(least, 0.1), 2)
        if share < rollout.vllm.gpu_memory_utilization:
            name = "rollout.vllm.gpu_memory_utilization"
            yield f"{name}={share:g}", setting(name, share), same
    if full and layout.gpu_gib and not layout.zero:
        count = max(NODE_GPUS, layout.processes)
        said = f"DeepSpeed ZeRO-2 on {count} GPUs (accelerate launch, docs/scale.md; slurm/grpo_nodes.sh)"
        yield said, same, lambda placed: replace(placed, processes=count, zero=2)
    for divisor in (2, 4, 8):
        budget = rollout.max_new_tokens
        less = max(1, budget // divisor) if isinstance(budget, int) else [max(1, one // divisor) for one in budget]
        yield f"rollout.max_new_tokens={less}", setting("rollout.max_new_tokens", less), same
    if full:
        yield "policy.lora={} (adapters instead of all weights)", setting("policy.lora", {}), same


def _with(config: RunConfig, path: list[str], value: Any) -> RunConfig:
    """The config with one setting changed; a prompt leaves no less room than before."""
    plain = config.model_dump()
    place = plain
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    changed = RunConfig.model_validate(plain)
    if path[-1] == "max_new_tokens":
        turns = len(config.rollout.branching)
        saved = config.rollout.earlier_tokens(turns) - changed.rollout.earlier_tokens(turns)
        plain["rollout"]["max_prompt_tokens"] = max(16, config.rollout.max_prompt_tokens - saved)
        changed = RunConfig.model_validate(plain)
    return changed
