"""How many of the trained weights an optimizer step changes, by a sample that costs next to nothing.

Rounding hides in no curve: a bfloat16 weight whose update is below half a unit in the last place stays what it was,
while loss, reward and gradient look healthy. So a seeded sample of the weights that the optimizer steps is compared
before and after every step, bit for bit, in the type in which they are stored. Under DeepSpeed these are the float32
copies of this process's shard, which is what AdamW updates; the bfloat16 weights that are computed with follow them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

SAMPLED = 100_000
"""Weights of a process that are compared at most; the standard error of a share is then below .002."""
SHARDS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition")
"""Where DeepSpeed's optimizers hold their float32 copies: ZeRO-2, ZeRO-3, and ZeRO-1 with float32 gradients."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightSample:
    """A seeded sample of at most about `most` (SAMPLED) elements of `tensors`, in proportion to their sizes, at least
    one of each."""

    def __init__(self, tensors: Iterable[Tensor], seed: int = 0, most: int | None = None) -> None:
        self._tensors = [tensor for tensor in tensors if tensor.numel()]
        total = sum(tensor.numel() for tensor in self._tensors)
        most = SAMPLED if most is None else most
        draw = torch.Generator().manual_seed(seed)
        self._places = [
            torch.randint(tensor.numel(), (count,), generator=draw).unique().to(tensor.device)
            if (count := max(1, most * tensor.numel() // total)) < tensor.numel()
            else torch.arange(tensor.numel(), device=tensor.device)
            for tensor in self._tensors
        ]
        self._bits = self._read()

    @torch.no_grad()
    def _read(self) -> list[Tensor]:
        """The bits of the sampled elements as they are now."""
        pairs = zip(self._tensors, self._places, strict=True)
        return [tensor.detach().reshape(-1)[places].view(_BITS[tensor.element_size()]) for tensor, places in pairs]

    def changed(self) -> tuple[int, int]:
        """(elements that differ from the last call, elements that are compared)."""
        before, self._bits = self._bits, self._read()
        counts = [(now != then).sum() for now, then in zip(self._bits, before, strict=True)]
        return int(torch.stack(counts).sum()) if counts else 0, sum(map(len, self._places))


def stepped_weights(trainer: Any) -> Iterator[Tensor]:
    """The weights that the optimizer of a started trainer updates, of which this process may hold a part: the float32
    shards of ZeRO, else the parameters that have a gradient."""
    engine = getattr(trainer, "deepspeed", None)
    for name in SHARDS:
        if shards := getattr(getattr(engine, "optimizer", None), name, None):
            yield from shards
            return
    yield from (weight for weight in trainer.model.parameters() if weight.requires_grad)


class WeightChanges(TrainerCallback):
    """Counts over the steps since `read` was last called. `trainer` is set once it exists.

    `gather` joins the values of all processes: ZeRO gives each another shard; without it all hold the same weights.
    """

    def __init__(self, seed: int, gather: Callable[[tuple[int, int]], list[tuple[int, int]]]) -> None:
        self.trainer: Any = None
        self.seed, self.gather = seed, gather
        self._sample: WeightSample | None = None
        self._share: float | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Draw the sample before the first step: a checkpoint has been loaded, and DeepSpeed has made its shards."""
        if self._sample is None:
            self._sample = WeightSample(stepped_weights(self.trainer), self.seed)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Compare. DeepSpeed has stepped in the backward pass before. A collective."""
        assert self._sample is not None
        counts = self.gather(self._sample.changed())
        compared = sum(count for _, count in counts)
        self._share = sum(count for count, _ in counts) / compared if compared else None

    def read(self) -> dict[str, float]:
        """`changed_weights` of the last step: a share from 0 to 1; nothing before the first."""
        share, self._share = self._share, None
        return {} if share is None else {"changed_weights": share}
