"""The share of trained weights that an optimizer step changes, from a random sample.

No curve reveals rounding: a bfloat16 weight stays unchanged if its update is below half a unit in the last place, while
loss, reward and gradient look healthy.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SAMPLED = 100_000
"""Maximum number of compared weights per process; the standard error of the share is then below .002."""
SHARDS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition")
"""Where DeepSpeed's optimizers hold their float32 copies: ZeRO-2, ZeRO-3, and ZeRO-1 with float32 gradients."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightSample:
    """A seeded sample of about SAMPLED elements of `tensors`, by size, at least one of each."""

    def __init__(self, tensors: Iterable[Tensor], seed: int = 0) -> None:
        self._tensors = [tensor for tensor in tensors if tensor.numel()]
        total = sum(tensor.numel() for tensor in self._tensors)
        draw = torch.Generator().manual_seed(seed)
        self._indices = [
            torch.randint(tensor.numel(), (count,), generator=draw).unique().to(tensor.device)
            if (count := max(1, SAMPLED * tensor.numel() // total)) < tensor.numel()
            else torch.arange(tensor.numel(), device=tensor.device)
            for tensor in self._tensors
        ]
        self._bits = self._read()

    @torch.no_grad()
    def _read(self) -> list[Tensor]:
        pairs = zip(self._tensors, self._indices, strict=True)
        return [tensor.detach().reshape(-1)[indices].view(_BITS[tensor.element_size()]) for tensor, indices in pairs]

    def changed(self) -> tuple[int, int]:
        """(number of elements changed since the last call, number of compared elements)."""
        previous, self._bits = self._bits, self._read()
        counts = [(new != old).sum() for new, old in zip(self._bits, previous, strict=True)]
        return int(torch.stack(counts).sum()) if counts else 0, sum(map(len, self._indices))


def stepped_weights(trainer: Trainer) -> Iterator[Tensor]:
    """The weights that the optimizer of a started trainer updates in this process."""
    engine = getattr(trainer, "deepspeed", None)
    for name in SHARDS:
        if shards := getattr(getattr(engine, "optimizer", None), name, None):
            yield from shards
            return
    assert trainer.model is not None
    for weight in trainer.model.parameters():
        if weight.requires_grad:
            yield weight.to_local() if isinstance(weight, DTensor) else weight


class WeightChanges(TrainerCallback):
    """Measures the share of changed weights per step; `gather` joins the counts of all processes."""

    def __init__(self, trainer: Trainer, seed: int, gather: Callable[[tuple[int, int]], list[tuple[int, int]]]) -> None:
        self.trainer, self.seed, self.gather = trainer, seed, gather
        self._sample: WeightSample | None = None
        self._share: float | None = None

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Draw the sample before the first step, when the checkpoint is loaded and DeepSpeed has created its shards."""
        if self._sample is None:
            self._sample = WeightSample(stepped_weights(self.trainer), self.seed)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Compare the weights; DeepSpeed has already stepped in the backward pass. Collective."""
        assert self._sample is not None
        changed, compared = map(sum, zip(*self.gather(self._sample.changed()), strict=True))
        self._share = changed / compared if compared else None

    def read(self) -> dict[str, float]:
        """`changed_weights` of the last step, from 0 to 1; empty if no step was measured since the last call."""
        share, self._share = self._share, None
        return {} if share is None else {"changed_weights": share}
