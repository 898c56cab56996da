"""Measure and correct the mismatch between the sampling engine and the trained model.

The engine may compute in another order or precision, or with rounded weights, so a token drawn with probability q has
probability p under the trained model. Weighting its loss by p / q (importance sampling) gives the gradient for samples
from p. Names and meanings are those of TRL's `vllm_importance_sampling_*`, per token. TRL computes p in a second
forward pass; here p comes from the forward pass of the loss, or from the old log-probabilities where there are some.
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


class ImportanceCorrection:
    """The weights of the tokens of a step, and their statistics."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5
        self._extremes = [-torch.inf] * 3

    def weigh(self, trainer: Tensor, sampler: Tensor, leaves: Tensor) -> Tensor:
        """The weights of tokens (n,); 1 where the sampler's log-probability is not known (NaN).

        A token counts `leaves` (n,) times in the statistics.
        """
        known = ~sampler.isnan()
        differences = trainer.detach().float() - torch.where(known, sampler, trainer.detach())
        differences = differences.clamp(-_LARGEST, _LARGEST)
        weights = differences.exp().clamp(max=LARGEST_WEIGHT)
        counted = known & (leaves > 0)
        if counted.any():
            self._count(differences[counted].double(), weights[counted], leaves[counted].double())
        return weights

    def _count(self, differences: Tensor, weights: Tensor, leaves: Tensor) -> None:
        ratio, distance = differences.exp(), differences.abs()
        kl = differences.expm1() - differences  # k3 of KL(sampler ‖ trainer) on samples of the sampler
        clipped = (weights - ratio).abs() > 1e-6 * ratio
        sums = (torch.stack([torch.ones_like(ratio), ratio, distance, kl, clipped.double()]) @ leaves).tolist()
        extremes = torch.stack([ratio.max(), -ratio.min(), distance.max()]).tolist()
        self._sums = [a + b for a, b in zip(self._sums, sums, strict=True)]
        self._extremes = [max(pair) for pair in zip(self._extremes, extremes, strict=True)]

    def read(self, all_gather: Callable[[list[float]], list[list[float]]] = lambda value: [value]) -> dict[str, float]:
        """Statistics over all processes since the last call, by their names in metrics.jsonl; empty if there was no
        token. Resets them. Collective."""
        totals = all_gather([*self._sums, *self._extremes])
        self._sums, self._extremes = [0.0] * 5, [-torch.inf] * 3
        count, *sums = (sum(values) for values in zip(*(row[:5] for row in totals), strict=True))
        largest, smallest, farthest = (max(values) for values in zip(*(row[5:] for row in totals), strict=True))
        if not count:
            return {}
        ratio, distance, kl, clipped = (value / count for value in sums)
        return {
            "sampling/importance_sampling_ratio/min": -smallest,
            "sampling/importance_sampling_ratio/mean": ratio,
            "sampling/importance_sampling_ratio/max": largest,
            f"{DIFFERENCE}/mean": distance,
            f"{DIFFERENCE}/max": farthest,
            "sampling/kl": kl,
            "sampling/clipped": clipped,
        }
