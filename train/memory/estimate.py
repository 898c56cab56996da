"""Estimate the memory of a training process before anything is loaded.

The estimate adds memory resident for the whole run (weights, gradients, optimizer, reference model, copies) and the
peak of each phase: sampling (vLLM, or the KV cache of the transformers engine), the update (activations of the longest
tree that the token budgets allow) and the optimizer step (its temporaries). Imports neither torch nor transformers.

Activations are those of packed rows (train/packing) through a decoder with gated MLPs, RMS norms and rotary positions.
Their bytes per token and layer were measured with saved-tensor hooks over widths and lengths; a test repeats this.
Simplifications: every token budget is used up, the prompt takes all tokens that the last turn leaves, HEADROOM covers
allocator fragmentation, and experts have the activations of dense layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from ...configs.schema import LoraConfig, PolicyConfig, RolloutConfig, RunConfig, TrainConfig
from ..packing.limits import BLOCK, HEAD_CHUNK, HEAD_TOKENS
from .model_shape import ModelShape

GIB = 2**30
H100_GIB = 79.0
"""Usable memory of an 80 GB H100, the GPU that the Slurm scripts target."""
HEADROOM = 0.95
"""Share of the memory that an estimate may use; the rest is for fragmentation and estimation errors."""
GPU_RESERVED = int(2.5 * GIB)
"""CUDA context and libraries, NCCL, the remainder of a sleeping vLLM, and an encoder of some 100M parameters."""
CPU_LIBRARIES = GIB // 2
"""Python with torch, transformers and TRL, and the code that oneDNN compiles (measured)."""
CPU_HEAP_GAPS = GIB
"""The most that a heap which keeps freed blocks (rollouts/memory.py) was measured to take beyond tensors: 0.2 to 1 GiB,
the same update less in one process than in the next."""
VLLM_WORKSPACE = 3 * GIB
"""What vLLM takes beside weights and KV cache: a prefill of 16,384 tokens, the sampler's logits, CUDA graphs."""
ZERO_BUCKETS = 4 * 500_000_000
"""DeepSpeed reduces and gathers through two buckets of 5e8 bfloat16 elements."""

LAYER_BYTES = {"float32": (24.0, 16.0, 20.3, 8.1), "mixed": (26.0, 8.0, 12.3, 6.1), "bfloat16": (16.0, 8.0, 12.3, 6.1)}
"""Bytes saved for the backward pass per token and layer, for each element of (hidden, intermediate, queries, keys).
mixed: float32 weights under autocast to bfloat16."""
GATHERED_BYTES = {"float32": (8.0, 4.0), "mixed": (4.0, 2.0), "bfloat16": (4.0, 2.0)}
"""The same for packed attention without FlexAttention: per element of queries times gathered keys / 256, per key."""
ACTIVATIONS = "activations of the longest tree"
CHECKPOINT_ABOVE = 8 * GIB
"""Activations from which `train.gradient_checkpointing: auto` recomputes layers."""
BACKWARD_SHARE = 0.35
"""Gradients alive at once in the backward pass of a layer, as a share of its saved tensors."""


@dataclass(frozen=True, slots=True)
class ProcessLayout:
    """The processes of a run, one per GPU, and the sharding of the training state."""

    processes: int = 1
    zero: Literal[0, 2, 3] = 0
    """DeepSpeed's ZeRO stage; 0 is plain DDP, where each process holds everything."""
    gpu_gib: float | None = H100_GIB
    """Memory of a GPU; None for the CPU."""
    bfloat16: bool = True
    """Whether the device supports bfloat16 arithmetic."""
    fsdp: bool = False
    """Whether FSDP2 splits all of it; `zero` is 0 then."""

    @property
    def sharding(self) -> str:
        """What splits the training state, such as "ZeRO-2"; "" for DDP and one process."""
        return "FSDP2" if self.fsdp else f"ZeRO-{self.zero}" if self.zero else ""

    @property
    def splits_weights(self) -> bool:
        """Whether every process holds a part of the weights."""
        return self.zero == 3 or self.fsdp

    @property
    def description(self) -> str:
        """A description such as "8 GPUs with ZeRO-2"."""
        kind = "CPU process" if self.gpu_gib is None else "GPU"
        number = f"{self.processes} {kind}{'' if self.processes == 1 else 's' if kind == 'GPU' else 'es'}"
        return f"{number} with {self.sharding}" if self.sharding else number


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of one process."""

    layout: ProcessLayout
    shape: ModelShape
    resident: Mapping[str, int]
    """Memory allocated for the whole run, by name."""
    phases: Mapping[str, Mapping[str, int]]
    """Additional memory of each phase, by name."""
    tree_tokens: int
    """Computed tokens of a micro-batch of the longest trees."""
    vllm_lacks: int = 0
    """Bytes that `gpu_memory_utilization` falls short of what vLLM needs to start."""

    def of_phase(self, name: str) -> int:
        """Peak bytes of a phase."""
        return sum(self.resident.values()) + sum(self.phases[name].values())

    @property
    def height(self) -> str:
        """The phase with the highest peak."""
        return max(self.phases, key=self.of_phase)

    @property
    def peak(self) -> int:
        """Peak bytes of that phase."""
        return self.of_phase(self.height)

    def fits(self, available: float | None = None) -> bool:
        """Whether it fits into `available` bytes (None: the memory of its GPU), and vLLM into its share."""
        capacity = (self.layout.gpu_gib or 0) * GIB if available is None else available
        return self.peak <= HEADROOM * capacity and not self.vllm_lacks

    def lines(self) -> list[str]:
        """A readable summary: the peak and its parts."""
        per = "process" if self.layout.gpu_gib is None else "GPU"
        location = f"on {self.layout.description}, in the {self.height} ({self.shape.source})"
        lack = f"; vLLM needs {self.vllm_lacks / GIB:.1f} GiB more than its share" if self.vllm_lacks else ""
        output = [f"{self.peak / GIB:.1f} GiB per {per} {location}{lack}"]
        for name, parts in (("always", self.resident), *self.phases.items()):
            listed = ", ".join(f"{part} {in_gib(size)}" for part, size in parts.items() if size >= GIB / 100)
            total = "" if name == "always" else f" = {in_gib(self.of_phase(name))}"
            output.append(f"{name}: {listed or 'nothing'}{total}")
        return output


def in_gib(size: float) -> str:
    """Bytes as a number of GiB."""
    return f"{size / GIB:.2f}" if size < GIB else f"{size / GIB:.1f}"


def longest_tree(rollout: RolloutConfig, settings: TrainConfig) -> tuple[int, int, int]:
    """(computed tokens of the largest micro-batch, sampled tokens among them, tokens of its longest sequence)."""
    branching = rollout.branching
    turns = len(branching)
    doc_tokens = rollout.documents * rollout.document_tokens
    doc_tokens = doc_tokens if rollout.observation_tokens is None else min(doc_tokens, rollout.observation_tokens)
    prompt = max(16, rollout.max_prompt_tokens - rollout.earlier_tokens(turns))
    path = prompt + turns * rollout.max_new_tokens + doc_tokens * (turns - 1)
    nodes = [prod(branching[:turn]) for turn in range(1, turns + 1)]
    sampled = sum(nodes) * rollout.max_new_tokens
    packed = prompt + sampled + doc_tokens * sum(nodes[:-1])
    trees = settings.questions_per_micro_batch
    computed = packed if settings.packing else nodes[-1] * path
    scored = sampled if settings.packing else nodes[-1] * (path - prompt)
    limit = max(path, settings.max_tokens_per_micro_batch or trees * computed)
    return min(limit, trees * computed), min(limit, trees * scored), path


def trained_parameters(lora: LoraConfig | None, shape: ModelShape) -> int:
    """Number of trained parameters: all, or those of the LoRA adapters."""
    if lora is None:
        return shape.parameters
    hidden, inner, queries, keys = shape.hidden, shape.intermediate, shape.queries, shape.keys
    widths = {"q_proj": hidden + queries, "k_proj": hidden + keys, "v_proj": hidden + keys, "o_proj": queries + hidden}
    widths |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), hidden + inner)
    modules = widths if lora.target_modules == "all-linear" else lora.target_modules
    return lora.r * sum(widths.get(name, 0) for name in modules) * min(lora.last_layers or shape.layers, shape.layers)


@dataclass(frozen=True, slots=True)
class MemoryPlanner:
    """Estimates the memory of a run before anything is loaded."""

    policy: PolicyConfig
    rollout: RolloutConfig
    train: TrainConfig
    shape: ModelShape
    """Of the policy."""

    def estimate(self, layout: ProcessLayout) -> MemoryEstimate:
        """The memory of one process."""
        policy, rollout, train, shape = self.policy, self.rollout, self.train, self.shape
        full, zero = policy.lora is None, layout.zero
        arithmetic = arithmetic_of(policy, layout)
        weights, trained = shape.parameters, trained_parameters(policy.lora, shape)
        size = 2 if arithmetic == "bfloat16" else 4
        loaded = self.loaded_size(layout)
        shards = layout.processes if layout.sharding else 1
        kept = weights // shards if layout.splits_weights else weights
        stored_size = 4 if full and layout.fsdp else size
        stored_weights = stored_size * kept
        resident = {"weights": stored_weights + (0 if full else 4 * trained // (shards if layout.fsdp else 1))}
        resident["gradients"] = 4 * trained // shards
        resident["optimizer"] = (12 if zero else 8) * trained // shards
        if zero:
            resident["DeepSpeed's buckets"] = min(ZERO_BUCKETS, 8 * trained)
        elif layout.processes > 1 and not layout.fsdp:
            resident["DDP's buckets"] = 4 * trained
        offloaded = full and not layout.splits_weights and layout.gpu_gib is not None  # train/trainer.py
        if train.beta > 0 and not offloaded:
            resident["reference"] = stored_weights if full else 4 * trained
        if rollout.engine == "transformers" and (not full or layout.splits_weights or train.staleness):
            resident["copy to sample from"] = loaded * weights
        resident["reserved"] = CPU_LIBRARIES + CPU_HEAP_GAPS if layout.gpu_gib is None else GPU_RESERVED
        vllm = rollout.vllm
        engine_memory = {"vLLM": int(vllm.gpu_memory_utilization * (layout.gpu_gib or 0) * GIB)}
        sampling = engine_memory if rollout.engine == "vllm" else {}
        if layout.splits_weights and rollout.engine != "transformers":  # rollouts/weights.py
            sampling = {
                **sampling,
                "gathered layer": stored_size * max(weights // shape.layers, shape.vocabulary * shape.hidden),
            }
        if rollout.engine == "transformers":
            sampling = _transformers_sampling(rollout, train.questions_per_step, shape, layout, arithmetic)
        engine_frees_memory = rollout.engine != "vllm" or vllm.enable_sleep_mode
        tokens = longest_tree(rollout, train)
        update = _activations(train, policy, shape, layout, tokens, self.checkpoints_layers(layout))
        step = {"temporaries": 4 * trained // shards if layout.gpu_gib is not None else 0}
        phases = {"rollout": sampling, "update": update, "optimizer step": step}
        if train.beta > 0 and offloaded:
            phases["reference"] = {"reference": size * weights, **_forward(shape, arithmetic, tokens)}
        if layout.sharding:  # until the weights are split they are whole, and gradients and optimizer not there
            there = ("reserved", "copy to sample from")
            later = sum(part for name, part in resident.items() if name not in there)
            vllm_share = engine_memory["vLLM"] if rollout.engine == "vllm" else 0
            phases["loading"] = {"whole weights, vLLM": max(0, loaded * weights + vllm_share - later)}
        if not engine_frees_memory:
            awake = {"rollout", "loading"}
            phases |= {name: {**parts, **engine_memory} for name, parts in phases.items() if name not in awake}
        lacks = 0
        if rollout.engine == "vllm" and layout.gpu_gib is not None:
            lacks = max(0, self.vllm_minimum(layout) - engine_memory["vLLM"])
        return MemoryEstimate(layout, shape, resident, phases, tokens[0], lacks)

    def loaded_size(self, layout: ProcessLayout) -> int:
        """Bytes of each weight as every process loads it (`trainable_dtype` of train/arguments.py)."""
        policy, cast_later = self.policy, layout.zero and not self.train.warm_start.questions
        in_float32 = policy.lora is None and policy.dtype == "auto" and not cast_later
        return 4 if in_float32 or arithmetic_of(policy, layout) == "float32" else 2

    def vllm_minimum(self, layout: ProcessLayout) -> int:
        """Bytes of a GPU without which vLLM in the process does not start: its slice of the weights, what it computes
        in, and the KV cache of the longest sequence."""
        chosen, shape = self.rollout.vllm, self.shape
        size = 4 if arithmetic_of(self.policy, layout) == "float32" else 2
        tokens = self.rollout.longest_sequence
        held = shape.parameters + 2 * shape.keys * shape.layers * tokens
        return size * held // chosen.tensor_parallel_size + VLLM_WORKSPACE

    def checkpoints_layers(self, layout: ProcessLayout) -> bool:
        """Whether layers are computed again in the backward pass: `train.gradient_checkpointing`, with `auto` resolved.

        It costs a third of the update. Activations below CHECKPOINT_ABOVE fit beside the weights wherever these do.
        """
        setting = self.train.gradient_checkpointing
        if setting != "auto":
            return bool(setting)
        tokens = longest_tree(self.rollout, self.train)
        parts = _activations(self.train, self.policy, self.shape, layout, tokens, checkpointing=False)
        return parts[ACTIVATIONS] > CHECKPOINT_ABOVE


def advice(planner: MemoryPlanner, layout: ProcessLayout) -> str:
    """What to change first where a run does not fit, by the phase that needs most."""
    estimate = planner.estimate(layout)
    if planner.policy.lora is None and sum(estimate.resident.values()) > (layout.gpu_gib or 0) * GIB / 2:
        return "train adapters (policy.lora={}), or split weights over more GPUs (configs/deepspeed/zero3.json)"
    if estimate.vllm_lacks:
        return (
            "raise rollout.vllm.gpu_memory_utilization, or let vLLM sample on other GPUs (rollout.engine=vllm_server)"
        )
    if estimate.height == "rollout":
        return "lower rollout.micro_batch or rollout.vllm.gpu_memory_utilization"
    if planner.rollout.engine == "vllm" and not planner.rollout.vllm.enable_sleep_mode:
        return "free vLLM's memory during the update (rollout.vllm.enable_sleep_mode=true)"
    if not planner.checkpoints_layers(layout):
        return "recompute layers in the backward pass (train.gradient_checkpointing=true)"
    tokens, _, path = longest_tree(planner.rollout, planner.train)
    if tokens > path:
        return f"compute a tree in parts (train.max_tokens_per_micro_batch={max(path, tokens // 4)})"
    return "lower rollout.max_new_tokens, or take a smaller policy.model or larger GPUs"


def planner_of(config: RunConfig, shape: ModelShape) -> MemoryPlanner:
    """The planner of a run whose policy has this shape."""
    return MemoryPlanner(config.policy, config.rollout, config.train, shape)


def _activations(
    train: TrainConfig,
    policy: PolicyConfig,
    shape: ModelShape,
    layout: ProcessLayout,
    tree: tuple[int, int, int],
    checkpointing: bool,
) -> dict[str, int]:
    """Memory of the forward and backward pass of a micro-batch, by part."""
    tokens, sampled, path = tree
    lora, arithmetic = policy.lora, arithmetic_of(policy, layout)
    size = 4 if arithmetic == "float32" else 2
    depth = shape.layers if lora is None else min(lora.last_layers or shape.layers, shape.layers)
    widths = (shape.hidden, shape.intermediate, shape.queries, shape.keys)
    layer = sum(factor * width for factor, width in zip(LAYER_BYTES[arithmetic], widths, strict=True))
    if lora is not None and arithmetic != "float32":
        layer += 6 * shape.hidden  # each adapter of a layer casts its own copy of the input
    if train.packing and layout.gpu_gib is None:
        by_query, by_key = GATHERED_BYTES[arithmetic]
        visible_keys = min(path / 2 + BLOCK, tokens)
        layer += by_query * shape.queries * visible_keys / BLOCK + by_key * visible_keys
    residual = shape.hidden * (2 if arithmetic == "bfloat16" else 4)
    saved = shape.layers * residual + layer if checkpointing else depth * layer
    parts = {ACTIVATIONS: int(tokens * (saved + BACKWARD_SHARE * layer))}
    if arithmetic == "mixed":
        parts["weights cast to bfloat16"] = 2 * shape.parameters
    parts["output head"] = _head(shape, layout, size, sampled) + 2 * residual * sampled
    if lora is None:  # its gradient in float32, and as it is added up
        parts["output head"] += (6 if arithmetic == "bfloat16" else 4) * shape.vocabulary * shape.hidden
    if layout.splits_weights:  # of two layers; in FSDP2 also as they arrive, and float32 gradients of one
        of_layers = (12 if layout.fsdp else 4) * shape.parameters // shape.layers
        if layout.fsdp and train.max_tokens_per_micro_batch is not None:  # while a piece is computed again
            of_layers += 2 * shape.parameters
        parts["gathered layers"] = of_layers + 4 * shape.vocabulary * shape.hidden
    return parts


def arithmetic_of(policy: PolicyConfig, layout: ProcessLayout) -> str:
    """float32, bfloat16, or mixed: float32 weights under autocast to bfloat16."""
    in_bfloat16 = policy.dtype == "bfloat16" or (policy.dtype == "auto" and layout.bfloat16)
    # DeepSpeed and FSDP2 compute with bfloat16 copies
    mixed = policy.lora is None and policy.dtype == "auto" and not layout.sharding
    return "float32" if not in_bfloat16 else "mixed" if mixed else "bfloat16"


def _head(shape: ModelShape, layout: ProcessLayout, size: int, sampled: int) -> int:
    """Bytes of a tile of logits (train/packing/head.py) and, on a CPU, of its float32 copies."""
    tile = min(sampled, HEAD_TOKENS) * min(shape.vocabulary, HEAD_CHUNK // HEAD_TOKENS)
    return int(tile * (size if layout.gpu_gib is not None else size + 24))


def _forward(shape: ModelShape, arithmetic: str, tree: tuple[int, int, int]) -> dict[str, int]:
    """Memory of a forward pass without gradient: hidden states and what one layer holds at once."""
    tokens, _, _ = tree
    width = 4 * shape.hidden + 3 * shape.intermediate + shape.queries + 2 * shape.keys
    return {"activations of one layer": tokens * width * (4 if arithmetic == "float32" else 2)}


def _transformers_sampling(
    rollout: RolloutConfig, questions: int, shape: ModelShape, layout: ProcessLayout, arithmetic: str
) -> dict[str, int]:
    """KV cache and logits of the sequences that the transformers engine samples in one batch; `questions` per step."""
    size = 4 if arithmetic == "float32" else 2
    last = rollout.branching[-1]
    sequences = prod(rollout.branching) * max(1, questions // layout.processes)
    rows = min(rollout.micro_batch, sequences)
    cached = rows // last * rollout.max_prompt_tokens + rows * rollout.max_new_tokens
    parts = {"keys and values": int(cached * 2 * shape.keys * shape.layers * size)}
    parts["logits"] = rows * shape.vocabulary * (size + 8)
    if arithmetic == "mixed":
        parts["weights cast to bfloat16"] = 2 * shape.parameters
    return parts
