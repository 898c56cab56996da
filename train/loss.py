"""The loss of a micro-batch of turns, by TRL's names (configs/loss.py).

    ratio     = exp(log π − log π_old), per token, or its geometric mean over a turn (GSPO)
    objective = min(ratio · A, clip(ratio) · A); cispo: clip(ratio), without gradient, · A · log π
    loss      = −p/q · objective + β · KL, per token
    total     = Σ leaves · loss / normalizer − entropy_coef · mean entropy

A is the advantage of the turn, p/q the importance weight of trainer over sampler (mismatch.py). Sums over tokens count
every token as often as its turn has leaves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..configs.loss import LossConfig
from .batch import TurnBatch


@dataclass(frozen=True, slots=True)
class Normalizer:
    """What sums are divided by."""

    tokens: float
    """Sampled tokens of all paths of the step, over all processes, divided by the number of processes."""
    max_tokens: int
    """Longest turn that may be sampled."""
    micro_batches: int
    """Micro-batches of the step in this process."""


def policy_loss(
    batch: TurnBatch, logps: Tensor, entropies: Tensor, weights: Tensor, settings: LossConfig, by: Normalizer
) -> tuple[Tensor, dict[str, Tensor]]:
    """(the loss, figures to average over tokens), from log-probabilities, entropies and importance weights, each (n,).

    Figures are (n,): `entropy`, and where they apply `kl`, `clip_ratio/region_mean` or `cispo_clip_ratio`.
    """
    old = logps.detach() if batch.old_logps is None else batch.old_logps
    log_ratio = logps - old
    if settings.importance_sampling_level == "sequence":
        log_ratio = batch.by_token(_mean_by_turn(log_ratio, batch))
    ratio = log_ratio.exp()
    advantages, leaves = batch.by_token(batch.advantages), batch.by_token(batch.leaves)
    figures = {"entropy": entropies.detach()}
    low = 1 - settings.epsilon
    high = 1 + (settings.epsilon if settings.epsilon_high is None else settings.epsilon_high)
    if settings.loss_type == "cispo":
        assert settings.epsilon_high is not None
        objective = ratio.clamp(max=settings.epsilon_high).detach() * advantages * logps
        figures["cispo_clip_ratio"] = ((ratio > settings.epsilon_high) & (advantages > 0)).float()
    else:
        objective = torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
        clipped = ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))
        figures["clip_ratio/region_mean"] = clipped.float()
    loss = -weights * objective
    if settings.beta:
        assert batch.reference_logps is not None
        difference = batch.reference_logps - logps
        kl = difference.exp() - difference - 1
        if settings.use_bias_correction_kl:
            kl = kl * ratio
        loss = loss + settings.beta * kl
        figures["kl"] = kl.detach()
    if settings.loss_type == "grpo":
        total = (batch.leaves * _mean_by_turn(loss, batch)).sum() / batch.paths / by.micro_batches
    elif settings.loss_type == "dr_grpo":
        total = (leaves * loss).sum() / (batch.paths * by.max_tokens) / by.micro_batches
    else:
        total = (leaves * loss).sum() / max(by.tokens, 1.0)
    if settings.entropy_coef:
        mean_entropy = (leaves * entropies).sum() / leaves.sum().clamp(min=1.0)
        total = total - settings.entropy_coef * mean_entropy / by.micro_batches
    return total, figures


def _mean_by_turn(values: Tensor, batch: TurnBatch) -> Tensor:
    """(t,) the mean of values (n,) over the tokens of each turn."""
    counts = batch.completions.to(values.device)
    turn = torch.arange(len(counts), device=values.device).repeat_interleave(counts)
    return values.new_zeros(len(counts)).index_add(0, turn, values) / counts.clamp(min=1)
