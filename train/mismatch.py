"""The engine that samples is not quite the model that is trained: measure how far apart they are, and correct for it.

An engine computes in another order, another precision or with weights that were rounded on their way, so a token that
it drew with probability q has the probability p under the trained model. Weighing its loss by p / q makes the gradient
that of samples from p. Names and meanings are those of TRL's `vllm_importance_sampling_*`, token by token. TRL takes a
second forward pass for p; here it is the forward pass of the loss, before the first optimizer step of a rollout changes
anything.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..configs.schema import TrainConfig

DIFFERENCE = "sampling/sampling_logp_difference"
"""Name of the distance of the two log-probabilities in metrics.jsonl, followed by /mean and /max."""
_LARGEST = 20.0
"""Log-ratios beyond this are taken as this: e²⁰ is off any scale, and its exponential stays finite."""


def log_ratios(trainer: Tensor, sampler: Tensor, mask: Tensor) -> Tensor:
    """log p − log q where `mask` is set and q was recorded, else 0. All (rows, tokens)."""
    known = mask.bool() & ~sampler.isnan()
    return torch.where(known, (trainer - sampler.nan_to_num()).clamp(-_LARGEST, _LARGEST), 0.0)


def importance_weights(differences: Tensor, settings: TrainConfig) -> Tensor:
    """The weights p / q of log-ratios (rows, tokens), kept within the bounds of `settings`."""
    ratio = differences.exp()
    least, most = settings.importance_sampling_clip_min, settings.importance_sampling_clip_max
    if least is None and most is None:
        return ratio
    bounded = ratio.clamp(least, most)
    return (
        bounded if settings.importance_sampling_mode == "token_truncate" else torch.where(bounded == ratio, ratio, 0.0)
    )


class Mismatch:
    """Figures over the tokens of the loss of a step, weighed as there; `gather` joins those of processes."""

    def __init__(self, settings: TrainConfig, gather: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        self.settings, self.gather = settings, gather
        self._sums: Tensor | None = None
        self._extremes: Tensor | None = None

    def weigh(self, trainer: Tensor, sampler: Tensor, mask: Tensor) -> Tensor:
        """The weights of a micro-batch, (rows, tokens), counted into the figures; 1 where nothing is to correct."""
        differences = log_ratios(trainer.detach().float(), sampler, mask)
        weights = importance_weights(differences, self.settings)
        counted = mask.bool() & ~sampler.isnan()
        self._count(differences[counted], weights[counted])
        return weights

    def _count(self, differences: Tensor, weights: Tensor) -> None:
        differences = differences.double()
        ratio, apart = differences.exp(), differences.abs()
        kl = differences.expm1() - differences  # k3 of KL(sampler ‖ trainer) on samples of the sampler
        clipped = (weights - ratio).abs() > 1e-6 * ratio
        sums = torch.stack([torch.ones_like(ratio), ratio, apart, kl, clipped.double()]).sum(1)
        infinity = torch.full((1,), torch.inf, device=ratio.device, dtype=ratio.dtype)
        extremes = torch.stack([torch.cat([values, -infinity]).max() for values in (ratio, -ratio, apart)])
        sums, extremes = self.gather(sums[None]).sum(0), self.gather(extremes[None]).amax(0)
        self._sums = sums if self._sums is None else self._sums + sums
        self._extremes = extremes if self._extremes is None else torch.maximum(self._extremes, extremes)

    def read(self) -> dict[str, float]:
        """The figures since they were last read, by their names in metrics.jsonl; none where there was no token."""
        sums, extremes, self._sums, self._extremes = self._sums, self._extremes, None, None
        if sums is None or extremes is None or not sums[0]:
            return {}
        ratio, apart, kl, clipped = (sums[1:] / sums[0]).tolist()
        largest, smallest, farthest = extremes.tolist()
        return {
            "sampling/importance_sampling_ratio/min": -smallest,
            "sampling/importance_sampling_ratio/mean": ratio,
            "sampling/importance_sampling_ratio/max": largest,
            f"{DIFFERENCE}/mean": apart,
            f"{DIFFERENCE}/max": farthest,
            "sampling/kl": kl,
            "sampling/clipped": clipped,
        }
