"""The loss of a micro-batch of turns, by TRL's names (configs/training.py), and its figures.

    ratio     = exp(log π − log π_old), per token, or its geometric mean over a turn (GSPO)
    objective = min(ratio · A, clip(ratio) · A); cispo: clip(ratio), without gradient, · A · log π
    loss      = −p/q · objective + β · KL, per token
    total     = Σ leaves · loss / normalizer − entropy_coef · mean entropy

A is the advantage of the turn. Sums over tokens count every token as often as its turn has leaves.

p/q is the importance weight of trainer over sampler: an engine may compute in another order or precision, or with
rounded weights, so a token drawn with probability q has probability p under the trained model, and weighting its loss
by p / q gives the gradient for samples from p. Names and meanings are those of TRL's `vllm_importance_sampling_*`, per
token. TRL computes p in a second forward pass; here p comes from the forward pass of the loss, or from the old
log-probabilities where there are some.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from ..configs.schema import TrainConfig
from ..rollouts.tree import Tree
from .turns import Floats, Ints

DIFFERENCE = "sampling/sampling_logp_difference"
"""Prefix of the log-probability difference in metrics.jsonl, followed by /mean and /max."""
LARGEST_WEIGHT = 3.0
"""Upper bound of p / q."""
_LARGEST = 20.0
"""Log-ratios are clamped to ± this, so that their exponentials stay finite."""


@dataclass(frozen=True, slots=True)
class TurnBatch:
    """t turns with n sampled tokens in all. Fields of tokens are in the order of the turns."""

    ids: Tensor
    """Prompt and completion ids of all turns, one after another."""
    lengths: Tensor
    """(t,) prompt and completion tokens of each turn."""
    completions: Tensor
    """(t,) completion tokens of each turn, which are the last ones."""
    advantages: Tensor
    """(t,) float32."""
    leaves: Tensor
    """(t,) float32: leaves below each turn. 0 for a turn that is computed for the sake of other processes alone."""
    sampler_logps: Tensor
    """(n,) log-probabilities at sampling; NaN where the engine did not record them."""
    paths: Tensor
    """() turns of all paths of the micro-batch, those without signal and those that a stop left out included."""
    old_logps: Tensor | None = None
    """(n,) log-probabilities before the first update on this rollout; None: those of the update itself."""
    reference_logps: Tensor | None = None
    """(n,) log-probabilities of the reference model, where the loss has a KL term."""

    def sequences(self) -> tuple[list[Ints], list[Ints]]:
        """(the ids of each turn, the positions of its completion)."""
        ids = np.split(self.ids.cpu().numpy(), np.cumsum(self.lengths.tolist())[:-1])
        sampled = zip(self.lengths.tolist(), self.completions.tolist(), strict=True)
        return ids, [np.arange(length - completion, length) for length, completion in sampled]

    def by_token(self, values: Tensor) -> Tensor:
        """(n,) the value (t,) of the turn of each token."""
        return values.repeat_interleave(self.completions.to(values.device))

    def mean_by_turn(self, values: Tensor) -> Tensor:
        """(t,) the mean of values (n,) over the tokens of each turn."""
        counts = self.completions.to(values.device)
        turn = torch.arange(len(counts), device=values.device).repeat_interleave(counts)
        return values.new_zeros(len(counts)).index_add(0, turn, values) / counts.clamp(min=1)


def turn_batch(
    trees: Sequence[Tree],
    leaves: Ints,
    advantages: Floats,
    computed: NDArray[np.bool_],
    collective: bool,
    device: torch.device,
) -> TurnBatch:
    """The turns of `trees` that are `computed` (n,), with their `leaves` (n,) and `advantages` (n,).

    `collective`: other processes wait for this one's gradient, so where no turn is computed, the first is there with
    weight 0.
    """
    nodes = [node for tree in trees for node in tree.walk()]
    rows, weights = np.flatnonzero(computed), leaves
    if collective and not len(rows):
        rows = np.array([row for row, node in enumerate(nodes) if node.completion_ids][:1], np.int64)
        weights = np.zeros_like(leaves)
    turns = [nodes[row] for row in rows]
    ids = [token for node in turns for token in (*node.prompt_ids, *node.completion_ids)]
    logps = [value for node in turns for value in node.logprobs or [nan] * len(node.completion_ids)]
    return TurnBatch(
        torch.tensor(ids, dtype=torch.long),
        torch.tensor([len(node.prompt_ids) + len(node.completion_ids) for node in turns], dtype=torch.long),
        torch.tensor([len(node.completion_ids) for node in turns], dtype=torch.long),
        torch.tensor(np.nan_to_num(advantages[rows]), dtype=torch.float32, device=device),
        torch.tensor(weights[rows], dtype=torch.float32, device=device),
        torch.tensor(logps, dtype=torch.float32, device=device),
        torch.tensor(float(sum(tree.turns for tree in trees for _ in tree.paths())), device=device),
    )


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one sampling of trees gives to the optimizer steps on it, in this process."""

    batches: Sequence[TurnBatch]
    """Its micro-batches."""
    tokens: float
    """Sampled tokens of all paths of the step, over all processes, divided by the number of processes."""
    metrics: Mapping[str, float]
    """Of the trees of all processes."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Tokens and paths sampled and searches made by this process for this step, replaced trees included."""
    logged: Sequence[Mapping[str, JsonValue]] = ()
    """Trees for rollouts.jsonl. Like `counts` they are those of the first step on the rollout alone."""


def policy_loss(
    batch: TurnBatch,
    logps: Tensor,
    entropies: Tensor,
    weights: Tensor,
    settings: TrainConfig,
    rollout: Rollout,
    max_tokens: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(the loss, figures to average over tokens), from log-probabilities, entropies and importance weights, each (n,),
    of a micro-batch of `rollout`, whose turns have up to `max_tokens` tokens.

    Figures are (n,): `entropy`, and where they apply `kl`, `clip_ratio/region_mean` or `cispo_clip_ratio`.
    """
    old = logps.detach() if batch.old_logps is None else batch.old_logps
    log_ratio = logps - old
    if settings.importance_sampling_level == "sequence":
        log_ratio = batch.by_token(batch.mean_by_turn(log_ratio))
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
        kl = kl_term(batch, logps, ratio, settings)
        loss = loss + settings.beta * kl
        figures["kl"] = kl.detach()
    if settings.loss_type == "grpo":
        total = (batch.leaves * batch.mean_by_turn(loss)).sum() / batch.paths / len(rollout.batches)
    elif settings.loss_type == "dr_grpo":
        total = (leaves * loss).sum() / (batch.paths * max_tokens) / len(rollout.batches)
    else:
        total = (leaves * loss).sum() / max(rollout.tokens, 1.0)
    if settings.entropy_coef:
        mean_entropy = (leaves * entropies).sum() / leaves.sum().clamp(min=1.0)
        total = total - settings.entropy_coef * mean_entropy / len(rollout.batches)
    return total, figures


def kl_term(batch: TurnBatch, logps: Tensor, ratio: Tensor, settings: TrainConfig) -> Tensor:
    """(n,) k3 of KL(policy ‖ reference), times the probability ratio with `use_bias_correction_kl`."""
    assert batch.reference_logps is not None
    difference = batch.reference_logps - logps
    kl = difference.exp() - difference - 1
    return kl * ratio if settings.use_bias_correction_kl else kl


def importance_weights(trainer: Tensor, sampler: Tensor) -> tuple[Tensor, Tensor]:
    """(p/q (n,) up to LARGEST_WEIGHT, log p − log q (n,)); 1 and NaN where the sampler recorded none (NaN)."""
    recorded = ~sampler.isnan()
    trainer = trainer.detach()
    differences = (trainer.float() - torch.where(recorded, sampler, trainer)).clamp(-_LARGEST, _LARGEST)
    return differences.exp().clamp(max=LARGEST_WEIGHT), torch.where(recorded, differences, torch.nan)


class StepFigures:
    """Means and extremes over the tokens of a step, each counted as often as its turn has leaves."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}
        """{name: (weighted sum, sum of the weights)}."""
        self.largest: dict[str, float] = {}

    def add(self, name: str, values: Tensor, leaves: Tensor) -> None:
        """Add values (n,) to the mean `name`."""
        total, count = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = total + float((leaves * values).sum()), count + float(leaves.sum())

    def add_sampling(self, differences: Tensor, weights: Tensor, leaves: Tensor) -> None:
        """Add what `importance_weights` gave, where the sampler's log-probability is recorded."""
        counted = ~differences.isnan() & (leaves > 0)
        if not counted.any():
            return
        differences, weights, leaves = differences[counted].double(), weights[counted], leaves[counted].double()
        ratio, distance = differences.exp(), differences.abs()
        means = {
            "sampling/importance_sampling_ratio/mean": ratio,
            f"{DIFFERENCE}/mean": distance,
            # k3 of KL(sampler ‖ trainer) on samples of the sampler
            "sampling/kl": differences.expm1() - differences,
            "sampling/clipped": ((weights - ratio).abs() > 1e-6 * ratio).double(),
        }
        for name, values in means.items():
            self.add(name, values, leaves)
        extremes = {
            "sampling/importance_sampling_ratio/min": -ratio.min(),
            "sampling/importance_sampling_ratio/max": ratio.max(),
            f"{DIFFERENCE}/max": distance.max(),
        }
        for name, value in extremes.items():
            self.largest[name] = max(self.largest.get(name, -torch.inf), float(value))

    def read(self, all_gather: Callable[["StepFigures"], list["StepFigures"]]) -> Mapping[str, float]:
        """The figures over all processes. Collective."""
        parts = all_gather(self)
        record: dict[str, float] = {}
        for name in sorted({name for part in parts for name in part.sums}):
            total, count = (sum(part.sums.get(name, (0.0, 0.0))[which] for part in parts) for which in (0, 1))
            if count:
                record[name] = total / count
        for name in sorted({name for part in parts for name in part.largest}):
            largest = max(part.largest.get(name, -torch.inf) for part in parts)
            record[name] = -largest if name.endswith("/min") else largest
        return record
