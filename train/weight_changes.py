"""The share of trained weights that an optimizer step changes, from a random sample.

No curve reveals rounding: a bfloat16 weight stays unchanged if its update is below half a unit in the last place, while
loss, reward and gradient look healthy.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .sharding import uses_deepspeed

SAMPLED = 100_000
"""Maximum number of compared weights per process; the standard error of the share is then below .002."""


class WeightChanges(TrainerCallback):
    """Measures the share of changed weights per step; `gather` joins the counts of all processes.

    DeepSpeed steps float32 copies of its own, which never round a step away: with it nothing is measured.
    """

    def __init__(self, trainer: Trainer, seed: int, gather: Callable[[tuple[int, int]], list[tuple[int, int]]]) -> None:
        self.trainer, self.seed, self.gather = trainer, seed, gather
        self._sample: list[tuple[Tensor, Tensor]] | None = None
        """Pairs of a weight and the indices that are compared of it."""
        self._values: list[Tensor] = []
        self._share: float | None = None

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Draw the sample before the first step, when the checkpoint is loaded."""
        if self._sample is not None or uses_deepspeed():
            return
        assert self.trainer.model is not None
        trained = [weight for weight in self.trainer.model.parameters() if weight.requires_grad]
        local = [weight.to_local() if isinstance(weight, DTensor) else weight for weight in trained]
        total = sum(weight.numel() for weight in local)
        draw = torch.Generator().manual_seed(self.seed)
        self._sample = []
        for weight in local:
            if weight.numel():
                count = min(weight.numel(), max(1, SAMPLED * weight.numel() // total))
                some = torch.randint(weight.numel(), (count,), generator=draw).unique()
                indices = torch.arange(count) if count == weight.numel() else some
                self._sample.append((weight, indices.to(weight.device)))
        self._values = self._read()

    @torch.no_grad()
    def _read(self) -> list[Tensor]:
        return [weight.detach().reshape(-1)[indices] for weight, indices in self._sample or ()]

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Compare the weights. Collective."""
        if self._sample is None:
            return
        previous, self._values = self._values, self._read()
        changed = sum(int((new != old).sum()) for new, old in zip(self._values, previous, strict=True))
        totals = self.gather((changed, sum(map(len, previous))))
        self._share = sum(count for count, _ in totals) / max(1, sum(compared for _, compared in totals))

    def read(self) -> dict[str, float]:
        """`changed_weights` of the last step, from 0 to 1; empty if no step was measured since the last call."""
        share, self._share = self._share, None
        return {} if share is None else {"changed_weights": share}
