"""Several optimizer steps on one rollout (`train.num_iterations`), and how a run that stops between them goes on.

A checkpoint in the middle of a rollout carries its micro-batches, so that a resumed run finishes it as the run that was
not stopped would have: rollout/process-N.safetensors beside the weights, one file per process.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import CheckpointError


def save_rollout(
    checkpoint: Path, process: int, batches: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]
) -> None:
    """Write the micro-batches of the rollout that is in use, and what it was described by."""
    tensors = {
        f"{number}.{name}": value.detach().cpu().clone().contiguous()
        for number, batch in enumerate(batches)
        for name, value in batch.items()
        if isinstance(value, Tensor)
    }
    folder = checkpoint / "rollout"
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / f"process-{process}.safetensors", {"metrics": json.dumps(dict(metrics))})


def load_rollout(
    checkpoint: Path, process: int, processes: int, device: torch.device
) -> tuple[list[dict[str, Tensor]], dict[str, float]]:
    """What `save_rollout` wrote. Raises OSError where it is missing, SafetensorError where it is damaged,
    CheckpointError where another number of processes had it."""
    had = len(list((checkpoint / "rollout").glob("process-*.safetensors")))
    if had not in (0, processes):
        raise CheckpointError(
            f"{checkpoint} lies between two steps on one rollout, which {had} processes had, and {processes} would go "
            f"on with it. Start {had}."
        )
    batches: dict[int, dict[str, Tensor]] = {}
    with safe_open(checkpoint / "rollout" / f"process-{process}.safetensors", "pt", device=str(device)) as saved:
        for key in saved.keys():  # noqa: SIM118 (no mapping)
            number, name = key.split(".", 1)
            batches.setdefault(int(number), {})[name] = saved.get_tensor(key)
        metrics = json.loads(saved.metadata()["metrics"])
    return [batches[number] for number in sorted(batches)], metrics
