"""Suggest changes to a run that does not fit, by estimating every combination of a few settings and layouts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from typing import TypeVar

from ...configs.section import Section
from ...errors import ConfigError
from ...rollouts.engines.base import check_tensor_parallel
from ..arguments import check_shape, trains_bfloat16
from .estimate import GIB, HEADROOM, MemoryEstimate, MemoryPlanner, ProcessLayout, longest_tree

AnySection = TypeVar("AnySection", bound=Section)

NODE_GPUS = 8
"""Number of GPUs that is suggested for a run."""
LEAST_GAIN = 0.01
"""Minimum saving, as a share of the peak, for a change to be suggested that does not make the run fit."""
MICRO_BATCH = "train.max_tokens_per_micro_batch"
SHARE, PARALLEL = "rollout.vllm.gpu_memory_utilization", "rollout.vllm.tensor_parallel_size"
COMMENTS = {
    "policy.lora": "adapters instead of all weights",
    "rollout.engine": "trl vllm-serve on other GPUs",
}
"""What is added to a suggested setting."""

Changes = Mapping[str, object]
"""New values of settings, by name."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """A run with some settings changed."""

    changes: Changes
    planner: MemoryPlanner
    distance: int
    """Sum of the positions of its values among the choices of each setting, the milder ones first."""


def remedies(planner: MemoryPlanner, layout: ProcessLayout) -> tuple[list[str], MemoryEstimate]:
    """The nearest changes that make a run fit its GPUs, and the resulting estimate; where no combination does, those
    that bring it closest.

    Nearest are changes that only cost time, fewest first; then another sharding of the training state, with as few of
    these changes as possible; then GPUs that sample alone, then changes to what is learned.
    """
    divisible = _passes_checks(planner, layout)
    closest: tuple[list[str], MemoryEstimate] = [], planner.estimate(layout)
    for changes, changed, placed in _combinations(planner, layout):
        if divisible and not _passes_checks(changed, placed):
            continue
        estimate = changed.estimate(placed)
        lacks, before = estimate.vllm_lacks, closest[1]
        saves = estimate.peak < (1 - LEAST_GAIN) * before.peak
        if estimate.fits() or lacks < before.vllm_lacks or (lacks == before.vllm_lacks and saves):
            labels = [_label(name, value) for name, value in changes.items()]
            closest = [*labels, *([_layout_label(placed)] if placed != layout else [])], estimate
        if estimate.fits():
            break
    return closest


def _combinations(
    planner: MemoryPlanner, layout: ProcessLayout
) -> Iterator[tuple[Changes, MemoryPlanner, ProcessLayout]]:
    """Every combination of the settings and layouts that may help, the nearest first."""
    engines: list[Changes] = [{}]
    if planner.rollout.engine != "vllm_server" and layout.gpu_gib:
        engines.append({"rollout.engine": "vllm_server"})
    for learned in _variants(planner, _learning(planner)):
        for engine in _variants(learned.planner, [engines]):
            updates = _variants(engine.planner, _update(engine.planner, layout))
            candidates = [
                (placed, update, sampling)
                for placed in _layouts(engine.planner, layout)
                for update, sampling in product(updates, _variants(engine.planner, _sampling(engine.planner, placed)))
            ]
            for placed, update, sampling in sorted(candidates, key=lambda candidate: _distance(layout, *candidate)):
                changes = {**update.changes, **sampling.changes, **engine.changes, **learned.changes}
                yield changes, replace(update.planner, rollout=sampling.planner.rollout), placed


def _distance(layout: ProcessLayout, placed: ProcessLayout, *variants: _Variant) -> tuple[bool, int, int]:
    """Compares candidates: the present layout first, then few changes, then mild ones."""
    changed = sum(len(variant.changes) for variant in variants)
    return placed != layout, changed, sum(variant.distance for variant in variants)


def _variants(planner: MemoryPlanner, choices: Sequence[Sequence[Changes]]) -> list[_Variant]:
    """The planner with every combination of one of the changes of each list, the mildest first."""
    variants = []
    for positions in product(*(range(len(options)) for options in choices)):
        changes: dict[str, object] = {}
        for options, position in zip(choices, positions, strict=True):
            changes |= options[position]
        changed = planner
        for name, value in changes.items():
            changed = _with_setting(changed, name, value)
        variants.append(_Variant(changes, changed, sum(positions)))
    return sorted(variants, key=lambda variant: variant.distance)


def _learning(planner: MemoryPlanner) -> list[list[Changes]]:
    """Changes to what is learned. Prompts shrink by the tokens of earlier answers that are saved."""
    rollout, turns = planner.rollout, len(planner.rollout.branching)
    budget = rollout.max_new_tokens
    shorter: list[Changes] = [{}]
    for divisor in (2, 4, 8):
        reduced = (
            max(1, budget // divisor) if isinstance(budget, int) else [max(1, tokens // divisor) for tokens in budget]
        )
        changes: dict[str, object] = {"rollout.max_new_tokens": reduced}
        earlier = _with_setting(planner, "rollout.max_new_tokens", reduced).rollout.earlier_tokens(turns)
        if saved := rollout.earlier_tokens(turns) - earlier:
            changes["rollout.max_prompt_tokens"] = max(16, rollout.max_prompt_tokens - saved)
        shorter.append(changes)
    adapters: list[Changes] = [{}, {"policy.lora": {}}] if planner.policy.lora is None else [{}]
    return [adapters, shorter]


def _update(planner: MemoryPlanner, layout: ProcessLayout) -> list[list[Changes]]:
    """Changes that make the update smaller and slower."""
    train = planner.train
    choices: list[list[Changes]] = []
    if train.questions_per_micro_batch > 1:
        choices.append([{}, {"train.questions_per_micro_batch": 1}])
    if not planner.checkpoints_layers(layout):
        choices.append([{}, {"train.gradient_checkpointing": True}])
    if train.packing is False:
        choices.append([{}, {"train.packing": "auto"}])
    tokens, _, path = longest_tree(planner.rollout, train)
    limits = [-(-tokens // pieces // 256) * 256 for pieces in (2, 4, 8, 16) if tokens // pieces > path]
    choices.append([{}, *({MICRO_BATCH: limit} for limit in limits)])
    return choices


def _sampling(planner: MemoryPlanner, layout: ProcessLayout) -> list[list[Changes]]:
    """Changes that leave the engine less memory."""
    rollout = planner.rollout
    if rollout.engine == "transformers":
        return [[{}, *({"rollout.micro_batch": rows} for rows in (128, 64, 32, 16) if rows < rollout.micro_batch)]]
    if rollout.engine != "vllm" or layout.gpu_gib is None:
        return []
    choices: list[list[Changes]] = [[{}, *_vllm_shares(planner, layout)]]
    if not rollout.vllm.enable_sleep_mode:
        choices.append([{}, {"rollout.vllm.enable_sleep_mode": True}])
    return choices


def _vllm_shares(planner: MemoryPlanner, layout: ProcessLayout) -> Iterator[Changes]:
    """For each tensor_parallel_size the smallest share of the GPU with which vLLM starts and caches 0.3 bytes for each
    parameter, where that is less than the present share or the present one is too small."""
    chosen = planner.rollout.vllm
    assert layout.gpu_gib is not None
    for parallel in (chosen.tensor_parallel_size * factor for factor in (1, 2, 4, 8)):
        least = _with_setting(planner, PARALLEL, parallel).vllm_minimum(layout)
        share = ceil(100 * (least + 0.3 * planner.shape.parameters / parallel) / (layout.gpu_gib * GIB)) / 100
        if share > HEADROOM or layout.processes % parallel:
            continue
        changes: dict[str, object] = {PARALLEL: parallel} if parallel != chosen.tensor_parallel_size else {}
        if least > chosen.gpu_memory_utilization * layout.gpu_gib * GIB or share < chosen.gpu_memory_utilization:
            changes[SHARE] = max(share, 0.1)
        if changes:
            yield changes


def _layouts(planner: MemoryPlanner, layout: ProcessLayout) -> list[ProcessLayout]:
    """The present layout, then others on at least NODE_GPUS GPUs. Trained bfloat16 weights need DeepSpeed."""
    if layout.gpu_gib is None:
        return [layout]
    several = replace(layout, processes=max(NODE_GPUS, layout.processes), zero=0, fsdp=False)
    others = replace(several, zero=2), replace(several, zero=3), replace(several, fsdp=True), several
    possible = dict.fromkeys((layout, *others))
    return [choice for choice in possible if choice.zero or not trains_bfloat16(planner.policy)]


def _passes_checks(planner: MemoryPlanner, layout: ProcessLayout) -> bool:
    """Whether the processes of the layout can share the questions of a step and the slices of vLLM."""
    rollout = planner.rollout
    try:
        check_shape(planner.train, rollout, layout.processes)
        if rollout.engine == "vllm":
            check_tensor_parallel(rollout.vllm, layout.processes)
    except ConfigError:
        return False
    return True


def _label(name: str, value: object) -> str:
    """A changed setting as it is typed, with what it means where that is not plain."""
    text = "true" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
    comment = f" ({COMMENTS[name]})" if name in COMMENTS else ""
    return f"{name}={text}{comment}"


def _layout_label(layout: ProcessLayout) -> str:
    """How to start processes with this sharding."""
    count = f"on {layout.processes} GPUs"
    if layout.fsdp:
        return f"FSDP2 {count} (configs/fsdp/fsdp2.yaml; SHARDING=fsdp2 sbatch slurm/grpo_nodes.sh)"
    if layout.zero:
        config = f"configs/deepspeed/zero{layout.zero}.json; SHARDING=zero{layout.zero} sbatch slurm/grpo_nodes.sh"
        return f"DeepSpeed {layout.sharding} {count} ({config})"
    return f"DDP {count} (accelerate launch --multi_gpu; SHARDING=ddp sbatch slurm/grpo_nodes.sh)"


def _with_setting(planner: MemoryPlanner, name: str, value: object) -> MemoryPlanner:
    """The planner of the run with one setting changed."""
    section, *path = name.split(".")
    if section == "policy":
        return replace(planner, policy=_changed(planner.policy, path, value))
    if section == "train":
        return replace(planner, train=_changed(planner.train, path, value))
    return replace(planner, rollout=_changed(planner.rollout, path, value))


def _changed(section: AnySection, path: Sequence[str], value: object) -> AnySection:
    """A section with the setting at `path` changed and everything validated."""
    plain = section.model_dump()
    inner = plain
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return type(section).model_validate(plain)
