"""Measure and correct the mismatch between the sampling engine and the trained model.

The engine may compute in another order or precision, or with rounded weights, so a token drawn with probability q has
probability p under the trained model. Weighting its loss by p / q (importance sampling) gives the gradient for samples
from p. Names and meanings are those of TRL's `vllm_importance_sampling_*`, per token. TRL computes p in a second
forward pass; here p comes from the forward pass of the loss, or from the old log-probabilities if TRL computed them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

DIFFERENCE = "sampling/sampling_logp_difference"
"""Prefix of the log-probability difference in metrics.jsonl, followed by /mean and /max."""
LARGEST_WEIGHT = 3.0
"""Upper bound of p / q."""
_LARGEST = 20.0
"""Log-ratios are clamped to ± this, so that their exponentials stay finite."""


def log_ratios(trainer: Tensor, sampler: Tensor, mask: Tensor) -> Tensor:
    """log p − log q where `mask` is set and q was recorded, else 0. All (rows, tokens)."""
    valid = mask.bool() & ~sampler.isnan()
    return torch.where(valid, (trainer - sampler.nan_to_num()).clamp(-_LARGEST, _LARGEST), 0.0)


class Mismatch:
    """Mismatch statistics over the loss tokens of a step; `gather` joins tensors of all processes."""

    def __init__(self, gather: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        self.gather = gather
        self._sums: Tensor | None = None
        self._extremes: Tensor | None = None

    def weigh(self, trainer: Tensor, sampler: Tensor, mask: Tensor) -> Tensor:
        """The weights of a micro-batch, (rows, tokens), also added to the statistics; 1 outside the mask."""
        differences = log_ratios(trainer.detach().float(), sampler, mask)
        weights = differences.exp().clamp(max=LARGEST_WEIGHT)
        counted = mask.bool() & ~sampler.isnan()
        self._count(differences[counted], weights[counted])
        return weights

    def _count(self, differences: Tensor, weights: Tensor) -> None:
        differences = differences.double()
        ratio, distance = differences.exp(), differences.abs()
        kl = differences.expm1() - differences  # k3 of KL(sampler ‖ trainer) on samples of the sampler
        clipped = (weights - ratio).abs() > 1e-6 * ratio
        sums = torch.stack([torch.ones_like(ratio), ratio, distance, kl, clipped.double()]).sum(1)
        infinity = torch.full((1,), torch.inf, device=ratio.device, dtype=ratio.dtype)
        extremes = torch.stack([torch.cat([values, -infinity]).max() for values in (ratio, -ratio, distance)])
        sums, extremes = self.gather(sums[None]).sum(0), self.gather(extremes[None]).amax(0)
        self._sums = sums if self._sums is None else self._sums + sums
        self._extremes = extremes if self._extremes is None else torch.maximum(self._extremes, extremes)

    def read(self) -> dict[str, float]:
        """Statistics since the last call, by their names in metrics.jsonl; empty if there was no token. Resets them."""
        sums, extremes, self._sums, self._extremes = self._sums, self._extremes, None, None
        if sums is None or extremes is None or not sums[0]:
            return {}
        ratio, distance, kl, clipped = (sums[1:] / sums[0]).tolist()
        largest, smallest, farthest = extremes.tolist()
        return {
            "sampling/importance_sampling_ratio/min": -smallest,
            "sampling/importance_sampling_ratio/mean": ratio,
            "sampling/importance_sampling_ratio/max": largest,
            f"{DIFFERENCE}/mean": distance,
            f"{DIFFERENCE}/max": farthest,
            "sampling/kl": kl,
            "sampling/clipped": clipped,
        }
