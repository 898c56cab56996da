"""The memory of a training process, estimated before anything is loaded. Imports neither torch nor transformers.

The peak is what lies there for the whole run and the largest phase: sampling, or the update with the activations of the
longest tree that the token budgets allow. Activations are those of packed rows (packing.py) through a decoder with
gated MLPs, RMS norms and rotary positions; their bytes per token and layer were measured with saved-tensor hooks, which
a test repeats. Experts have the activations of dense layers.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.schema import LoraConfig, PolicyConfig, RolloutConfig, RunConfig, TrainConfig
from ..errors import ModelError
from ..sources import resolve_model
from .sharding import Sharding, sharding

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from .processes import Processes

HEAD_CHUNK = 1 << 24
"""Maximum number of logits held at a time: 64 MiB in float32, and up to eight copies of it on a CPU."""
HEAD_TOKENS = 4096
"""Number of tokens of such a tile of logits: TOKEN_CHUNK_SIZE of TRL's kernel."""
BLOCK = 256
"""Number of queries of packed attention that share one set of gathered keys."""
GIB = 2**30
H100_GIB = 79.0
"""Usable memory of an 80 GB H100, the GPU that the Slurm scripts target."""
HEADROOM = 0.95
"""Share of the memory that an estimate may use; the rest is for fragmentation and estimation errors."""
GPU_RESERVED = int(2.5 * GIB)
"""CUDA context and libraries, NCCL, the remainder of a sleeping vLLM, and an encoder of some 100M parameters."""
CPU_RESERVED = 3 * GIB // 2
"""Python with torch, transformers and TRL, and the gaps of a heap that keeps freed blocks (measured)."""
ZERO_BUCKETS = 4 * 500_000_000
"""DeepSpeed reduces and gathers through two buckets of 5e8 bfloat16 elements."""
LAYER_BYTES = {"float32": (24.0, 16.0, 20.3, 8.1), "mixed": (26.0, 8.0, 12.3, 6.1), "bfloat16": (16.0, 8.0, 12.3, 6.1)}
"""Bytes saved for the backward pass per token and layer, for each element of (hidden, intermediate, queries, keys).
mixed: float32 weights under autocast to bfloat16."""
GATHERED_BYTES = {"float32": (8.0, 4.0), "mixed": (4.0, 2.0), "bfloat16": (4.0, 2.0)}
"""The same for packed attention without FlexAttention: per element of queries times gathered keys / 256, per key."""
CHECKPOINT_ABOVE = 8 * GIB
"""Activations from which `train.gradient_checkpointing: auto` recomputes layers, which costs a third of the update."""
BACKWARD_SHARE = 0.35
"""Gradients alive at once in the backward pass of a layer, as a share of its saved tensors."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of `layers` equal layers; widths are in elements of one token. Of a mixture of experts, `intermediate`
    is the total of the active ones."""

    parameters: int
    hidden: int
    intermediate: int
    layers: int
    queries: int
    """Number of attention heads times head width."""
    keys: int
    """Number of key-value heads times head width."""
    vocabulary: int
    source: str = ""


KNOWN = {
    "smollm2-135m": ModelShape(134_500_000, 576, 1536, 30, 576, 192, 49_152),
    "qwen2.5-7b": ModelShape(7_616_000_000, 3584, 18_944, 28, 3584, 512, 152_064),
    "qwen3-0.6b": ModelShape(596_000_000, 1024, 3072, 28, 2048, 1024, 151_936),
    "qwen3-1.7b": ModelShape(1_721_000_000, 2048, 6144, 28, 2048, 1024, 151_936),
    "qwen3-4b": ModelShape(4_022_000_000, 2560, 9728, 36, 4096, 1024, 151_936),
    "qwen3-8b": ModelShape(8_191_000_000, 4096, 12_288, 36, 4096, 1024, 151_936),
    "qwen3-14b": ModelShape(14_768_000_000, 5120, 17_408, 40, 5120, 1024, 151_936),
    "qwen3-32b": ModelShape(32_762_000_000, 5120, 25_600, 64, 8192, 1024, 151_936),
    "llama-3.2-3b": ModelShape(3_213_000_000, 3072, 8192, 28, 3072, 1024, 128_256),
}
"""Published dimensions of common models, by the prefix of their name on the Hub."""


def shape_of(model: str) -> ModelShape | None:
    """The dimensions of `policy.model`: from the config.json of a folder, an installed package or the Hub cache, else
    as published, by its name or that of its GGUF file. None if unknown."""
    try:
        folder = Path(resolve_model(model))
    except ModelError:
        return None
    with suppress(ImportError, OSError, KeyError, TypeError, ValueError):  # no such file, or of another kind of model
        path = folder / "config.json"
        if not path.is_file():
            from huggingface_hub import try_to_load_from_cache

            path = Path(str(try_to_load_from_cache(model, "config.json")))
        return from_config(json.loads(path.read_text(encoding="utf-8")), f"{model}, by its config.json")
    names = [Path(model).name, *(path.stem for path in folder.glob("*.gguf"))]
    published = (shape for name in names for key, shape in KNOWN.items() if name.lower().startswith(key))
    return next((replace(shape, source=f"{model}, by its published sizes") for shape in published), None)


def from_config(config: Mapping[str, Any], source: str = "") -> ModelShape:
    """The dimensions in transformers' config.json. Raises KeyError if it does not describe such a decoder."""
    tied = config.get("tie_word_embeddings", True)
    config = config.get("text_config") or config
    hidden, layers, words = int(config["hidden_size"]), int(config["num_hidden_layers"]), int(config["vocab_size"])
    heads = int(config["num_attention_heads"])
    width = int(config.get("head_dim") or hidden // heads)
    queries, keys = heads * width, int(config.get("num_key_value_heads") or heads) * width
    inner = int(config["intermediate_size"])
    mlp = 3 * hidden * inner
    if experts := int(config.get("num_experts") or config.get("num_local_experts") or 0):
        inner = int(config.get("moe_intermediate_size") or inner)
        mlp = experts * (3 * hidden * inner + hidden)
        inner *= int(config.get("num_experts_per_tok") or 1)
    layer = 2 * hidden * (queries + keys) + mlp + 2 * hidden
    heads_and_embeddings = words * hidden * (1 if config.get("tie_word_embeddings", tied) else 2)
    parameters = layers * layer + heads_and_embeddings + hidden
    return ModelShape(parameters, hidden, inner, layers, queries, keys, words, source)


@dataclass(frozen=True, slots=True)
class ProcessLayout:
    """The processes of a run, one per GPU, and the sharding of the training state."""

    processes: int = 1
    sharding: Sharding = ""
    gpu_gib: float | None = H100_GIB
    """Memory of a GPU; None for the CPU."""
    bfloat16: bool = True
    """Whether the device supports bfloat16 arithmetic."""

    @property
    def zero(self) -> bool:
        """Whether DeepSpeed shards."""
        return self.sharding.startswith("ZeRO")

    @property
    def splits_weights(self) -> bool:
        return self.sharding in ("ZeRO-3", "FSDP2")

    def arithmetic(self, policy: PolicyConfig) -> str:
        """float32, bfloat16, or mixed: float32 weights under autocast to bfloat16."""
        in_bfloat16 = policy.dtype == "bfloat16" or (policy.dtype == "auto" and self.bfloat16)
        # DeepSpeed and FSDP2 compute with bfloat16 copies
        mixed = policy.lora is None and policy.dtype == "auto" and not self.sharding
        return "float32" if not in_bfloat16 else "mixed" if mixed else "bfloat16"


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of one process."""

    layout: ProcessLayout
    shape: ModelShape
    resident: Mapping[str, int]
    """Memory allocated for the whole run, by name."""
    phases: Mapping[str, Mapping[str, int]]
    """Additional memory of each phase, by name."""

    def of_phase(self, name: str) -> int:
        """Peak bytes of a phase."""
        return sum(self.resident.values()) + sum(self.phases[name].values())

    @property
    def highest(self) -> str:
        """The phase with the highest peak."""
        return max(self.phases, key=self.of_phase)

    @property
    def peak(self) -> int:
        return self.of_phase(self.highest)

    def fits(self, available: float | None = None) -> bool:
        """Whether it fits into `available` bytes (None: the memory of its GPU)."""
        return self.peak <= HEADROOM * ((self.layout.gpu_gib or 0) * GIB if available is None else available)

    def lines(self) -> list[str]:
        """A readable summary: the peak and its parts."""
        layout = self.layout
        unit = "CPU process" if layout.gpu_gib is None else "GPU"
        number = f"{layout.processes} {unit}" + ("s" if layout.processes > 1 else "")
        sharding = f" with {layout.sharding}" if layout.sharding else ""
        lines = [
            f"{self.peak / GIB:.1f} GiB per {unit} on {number}{sharding}, in the {self.highest} ({self.shape.source})"
        ]
        for name, sizes in (("always", self.resident), *self.phases.items()):
            lines.append(f"{name}: {', '.join(f'{part} {size / GIB:.2f}' for part, size in sizes.items() if size)}")
        return lines

    def advice(self) -> str:
        """What to change first where the run does not fit."""
        if sum(self.resident.values()) > (self.layout.gpu_gib or 0) * GIB / 2:
            return "train adapters (policy.lora={}), or split weights over more GPUs (configs/deepspeed/zero3.json)"
        if "vLLM" in self.phases[self.highest]:
            return "lower rollout.vllm.gpu_memory_utilization, or set rollout.vllm.enable_sleep_mode=true"
        return (
            "recompute layers in the backward pass (train.gradient_checkpointing=true), compute a tree in parts "
            "(train.max_tokens_per_micro_batch), or lower rollout.micro_batch or rollout.max_new_tokens"
        )


def estimate(config: RunConfig, shape: ModelShape, layout: ProcessLayout) -> MemoryEstimate:
    """The memory of one process of a run whose policy has this shape."""
    policy, rollout, train = config.policy, config.rollout, config.train
    on_gpu, full, arithmetic = layout.gpu_gib is not None, policy.lora is None, layout.arithmetic(policy)
    weights, trained = shape.parameters, trained_parameters(policy.lora, shape)
    size = 2 if arithmetic == "bfloat16" else 4
    shards = layout.processes if layout.sharding else 1
    fsdp = layout.sharding == "FSDP2"
    stored_size = 4 if full and fsdp else size
    stored = stored_size * (weights // shards if layout.splits_weights else weights)
    # as every process loads it (`trainable_dtype` of train/arguments.py)
    in_float32 = full and policy.dtype == "auto" and not (layout.zero and not train.warm_start.questions)
    loaded = (4 if in_float32 or arithmetic == "float32" else 2) * weights
    resident = {
        "weights": stored + (0 if full else 4 * trained // (shards if fsdp else 1)),
        "gradients": 4 * trained // shards,
        "optimizer": (12 if layout.zero else 8) * trained // shards,
    }
    if layout.zero:
        resident["DeepSpeed's buckets"] = min(ZERO_BUCKETS, 8 * trained)
    elif layout.processes > 1 and not fsdp:
        resident["DDP's buckets"] = 4 * trained
    offloaded = full and not layout.splits_weights and on_gpu  # train/trainer.py
    if train.beta > 0 and not offloaded:
        resident["reference"] = stored if full else 4 * trained
    if rollout.engine == "transformers" and (not full or layout.splits_weights or train.staleness):
        resident["copy to sample from"] = loaded
    resident["reserved"] = GPU_RESERVED if on_gpu else CPU_RESERVED

    vllm = int(rollout.vllm.gpu_memory_utilization * (layout.gpu_gib or 0) * GIB) if rollout.engine == "vllm" else 0
    sampling = {"vLLM": vllm} if vllm else {}
    if rollout.engine == "transformers":  # of the sequences that are sampled in one batch
        sequences = prod(rollout.branching) * max(1, train.questions_per_step // layout.processes)
        rows, width = min(rollout.micro_batch, sequences), 4 if arithmetic == "float32" else 2
        cached = rows // rollout.branching[-1] * rollout.max_prompt_tokens + rows * rollout.max_new_tokens
        sampling["keys and values"] = cached * 2 * shape.keys * shape.layers * width
        sampling["logits"] = rows * shape.vocabulary * (width + 8)
        sampling["weights cast to bfloat16"] = 2 * weights if arithmetic == "mixed" else 0
    elif layout.splits_weights:  # rollouts/weights.py
        sampling["gathered layer"] = stored_size * max(weights // shape.layers, shape.vocabulary * shape.hidden)
    phases = {
        "rollout": sampling,
        "update": _activations(config, shape, layout, checkpoints_layers(config, shape, layout)),
        "optimizer step": {"temporaries": 4 * trained // shards if on_gpu else 0},
    }
    if train.beta > 0 and offloaded:
        phases["reference"] = {"reference": size * weights}
    if vllm and not rollout.vllm.enable_sleep_mode:
        phases |= {name: {**parts, "vLLM": vllm} for name, parts in phases.items() if name != "rollout"}
    if layout.sharding:  # until the weights are split they are whole, and gradients and optimizer not there
        later = sum(part for name, part in resident.items() if name not in ("reserved", "copy to sample from"))
        phases["loading"] = {"whole weights, vLLM": max(0, loaded + vllm - later)}
    return MemoryEstimate(layout, shape, resident, phases)


def longest_tree(rollout: RolloutConfig, settings: TrainConfig) -> tuple[int, int, int]:
    """(computed tokens of the largest micro-batch, sampled tokens among them, tokens of its longest sequence)."""
    turns = len(rollout.branching)
    doc_tokens = rollout.documents * rollout.document_tokens
    doc_tokens = doc_tokens if rollout.observation_tokens is None else min(doc_tokens, rollout.observation_tokens)
    prompt = max(16, rollout.max_prompt_tokens - rollout.earlier_tokens(turns))
    path = prompt + turns * rollout.max_new_tokens + doc_tokens * (turns - 1)
    nodes = [prod(rollout.branching[:turn]) for turn in range(1, turns + 1)]
    computed, scored = nodes[-1] * path, nodes[-1] * (path - prompt)
    if settings.packing:
        scored = sum(nodes) * rollout.max_new_tokens
        computed = prompt + scored + doc_tokens * sum(nodes[:-1])
    trees = settings.questions_per_micro_batch
    limit = max(path, settings.max_tokens_per_micro_batch or trees * computed)
    return min(limit, trees * computed), min(limit, trees * scored), path


def trained_parameters(lora: LoraConfig | None, shape: ModelShape) -> int:
    """Number of trained parameters: all, or those of the LoRA adapters."""
    if lora is None:
        return shape.parameters
    # the projections of queries and output, of keys and values, and the three of the MLP
    widths = (
        2 * (shape.hidden + shape.queries) + 2 * (shape.hidden + shape.keys) + 3 * (shape.hidden + shape.intermediate)
    )
    return lora.r * widths * min(lora.last_layers or shape.layers, shape.layers)


def checkpoints_layers(config: RunConfig, shape: ModelShape, layout: ProcessLayout) -> bool:
    """`train.gradient_checkpointing`, with `auto` resolved."""
    setting = config.train.gradient_checkpointing
    if setting != "auto":
        return setting
    return _activations(config, shape, layout, checkpointing=False)["activations"] > CHECKPOINT_ABOVE


def resolve_gradient_checkpointing(
    config: RunConfig, model: "PreTrainedModel | PeftModel", processes: "Processes"
) -> bool:
    """`train.gradient_checkpointing` with `auto` resolved by the estimate for this policy and this machine; false where
    its sizes cannot be read."""
    import torch

    from ..rollouts.policy import torch_dtype

    try:
        shape = from_config(model.config.to_dict())
    except (KeyError, TypeError, ValueError):
        return config.train.gradient_checkpointing is True
    gpu = H100_GIB if processes.device.type == "cuda" else None
    layout = ProcessLayout(processes.count, sharding(), gpu, torch_dtype(config.policy) == torch.bfloat16)
    return checkpoints_layers(config, shape, layout)


def _activations(config: RunConfig, shape: ModelShape, layout: ProcessLayout, checkpointing: bool) -> dict[str, int]:
    """Memory of the forward and backward pass of a micro-batch, by part."""
    tokens, sampled, path = longest_tree(config.rollout, config.train)
    train, lora, arithmetic = config.train, config.policy.lora, layout.arithmetic(config.policy)
    on_gpu, size = layout.gpu_gib is not None, 4 if arithmetic == "float32" else 2
    depth = shape.layers if lora is None else min(lora.last_layers or shape.layers, shape.layers)
    widths = (shape.hidden, shape.intermediate, shape.queries, shape.keys)
    layer = sum(factor * width for factor, width in zip(LAYER_BYTES[arithmetic], widths, strict=True))
    if lora is not None and arithmetic != "float32":
        layer += 6 * shape.hidden  # each adapter of a layer casts its own copy of the input
    if train.packing and not on_gpu:
        by_query, by_key = GATHERED_BYTES[arithmetic]
        visible_keys = min(path / 2 + BLOCK, tokens)
        layer += by_query * shape.queries * visible_keys / BLOCK + by_key * visible_keys
    residual = shape.hidden * (2 if arithmetic == "bfloat16" else 4)
    saved = shape.layers * residual + layer if checkpointing else depth * layer
    parts = {"activations": int(tokens * (saved + BACKWARD_SHARE * layer))}
    if arithmetic == "mixed":
        parts["weights cast to bfloat16"] = 2 * shape.parameters
    tile = min(sampled, HEAD_TOKENS) * min(shape.vocabulary, HEAD_CHUNK // HEAD_TOKENS)  # train/head.py
    parts["output head"] = tile * (size if on_gpu else size + 24) + 2 * residual * sampled
    if lora is None:  # its gradient in float32, and as it is added up
        parts["output head"] += (6 if arithmetic == "bfloat16" else 4) * shape.vocabulary * shape.hidden
    if layout.splits_weights:  # of two layers; in FSDP2 also as they arrive, and float32 gradients of one
        of_layers = (4 if layout.zero else 12) * shape.parameters // shape.layers
        if not layout.zero and train.max_tokens_per_micro_batch is not None:  # while a piece is computed again
            of_layers += 2 * shape.parameters
        parts["gathered layers"] = of_layers + 4 * shape.vocabulary * shape.hidden
    return parts
