"""Estimate the host memory of a node whose GPUs train.

Not counted: the retriever with its index, and pages of files, which the kernel drops when memory is needed.
"""

from .estimate import GIB, MemoryPlanner, ProcessLayout, arithmetic_of, trained_parameters

NODE_PROCESSES = 8
"""Processes of a node, at most."""
PROCESS = 4 * GIB
"""Python with torch, CUDA's libraries and vLLM (assumed)."""


def host_memory(planner: MemoryPlanner, layout: ProcessLayout) -> dict[str, int]:
    """Bytes of the node with the main process, by phase; nothing for the CPU, where the estimate of a process is all.

    Loading: every process loads the whole policy before it moves it to its GPU, and then the whole reference model,
    which TRL loads in float32. Training: the offloaded reference model. Saving: what is copied from the GPUs, by every
    process under ZeRO-2, else by the main process; FSDP2 gathers the optimizer, ZeRO-3 leaves frozen weights out.
    """
    if layout.gpu_gib is None:
        return {}
    policy, weights = planner.policy, planner.shape.parameters
    full, trained = policy.lora is None, trained_parameters(policy.lora, planner.shape)
    processes = min(NODE_PROCESSES, layout.processes)
    size = 2 if arithmetic_of(policy, layout) == "bfloat16" else 4
    reference = full and planner.train.beta > 0
    loaded = max(planner.loaded_size(layout), 4 if reference else 0)
    offloaded = processes * size * weights if reference and not layout.splits_weights else 0
    if layout.fsdp:
        copied = 8 * trained
    elif layout.zero == 2:
        copied = processes * size * weights
    else:
        copied = (size if full else 4) * trained
    phases = {"loading": processes * loaded * weights, "training": offloaded, "saving": offloaded + copied}
    return {name: processes * PROCESS + part for name, part in phases.items()}
