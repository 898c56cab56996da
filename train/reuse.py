"""Resume between several optimizer steps on one rollout (`train.num_iterations`).

A checkpoint in the middle of a rollout stores its micro-batches in rollout/process-N.safetensors, one file per process,
so that a resumed run continues exactly like an uninterrupted one.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import CheckpointError
from ..storage import parse_json
from .batch import TurnBatch


class Rollout(NamedTuple):
    """What an optimizer step on a rollout needs."""

    batches: Sequence[TurnBatch]
    tokens: float
    """What `Normalizer.tokens` is."""
    metrics: Mapping[str, float]


def save_rollout(checkpoint: Path, process: int, rollout: Rollout) -> None:
    """Write the current rollout."""
    tensors = {
        f"{number}.{field.name}": value.contiguous()
        for number, batch in enumerate(rollout.batches)
        for field in fields(batch)
        if (value := getattr(batch, field.name)) is not None
    }
    figures = json.dumps({"tokens": rollout.tokens, "metrics": dict(rollout.metrics)})
    folder = checkpoint / "rollout"
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / f"process-{process}.safetensors", {"figures": figures})


def load_rollout(checkpoint: Path, process: int, processes: int, device: torch.device) -> Rollout:
    """What `save_rollout` wrote. Raises OSError if it is missing, SafetensorError if it is damaged, CheckpointError if
    another number of processes wrote it."""
    saved_processes = len(list((checkpoint / "rollout").glob("process-*.safetensors")))
    if saved_processes not in (0, processes):
        raise CheckpointError(
            f"{checkpoint} lies between two steps on one rollout, which {saved_processes} processes had, and "
            f"{processes} would go on with it. Start {saved_processes}."
        )
    batches: dict[int, dict[str, Tensor]] = {}
    with safe_open(checkpoint / "rollout" / f"process-{process}.safetensors", "pt", device=str(device)) as file:
        for key in file.keys():  # noqa: SIM118 (no mapping)
            number, name = key.split(".", 1)
            batches.setdefault(int(number), {})[name] = file.get_tensor(key)
        figures = parse_json(file.metadata()["figures"])
    return Rollout([TurnBatch(**batches[number]) for number in sorted(batches)], figures["tokens"], figures["metrics"])


def random_streams() -> Callable[[], None]:
    """What brings back the present random states of Python, NumPy, PyTorch on the CPU, and every GPU."""
    python, arrays, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(cpu)
        torch.cuda.set_rng_state_all(cuda)

    return restore
