"""Supervised imitation: demonstrations, their negative log-likelihood, and the optimizer steps of a warm start."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from ..configs.schema import TrainConfig
from ..data.sampling import in_batches
from ..logs import progress_bar
from ..rollouts.memory import give_back_freed_memory
from .packing.attention import attention_kind
from .packing.packing import token_logps
from .run_folder import RunFolder

log = logging.getLogger(__name__)

_WARMUP_STEPS = 3


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Token ids of a conversation, and the (begin, end) of every span to imitate; `begin` ≥ 1. All other tokens
    (prompt, retrieved documents) are context without loss."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Round:
    """The demonstrations of one round, in the order of training."""

    demonstrations: Sequence[Demonstration]
    figures: Mapping[str, float] = field(default_factory=dict)
    """Metrics logged with every step of the round."""


def imitate(policy: nn.Module, rounds: Iterable[Round], count: int, config: TrainConfig, folder: RunFolder) -> int:
    """Train `policy` in place on `count` rounds, each drawn after the previous one; returns the number of steps.

    The learning rate warms up over three steps and decays linearly to 0 at the end of the last round. Every optimizer
    step appends one line to warm_start.jsonl.
    """
    settings = config.warm_start
    trainable = [weights for weights in policy.parameters() if weights.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=settings.learning_rate, weight_decay=0.0)
    step = 0
    for number, current in enumerate(rounds):
        batches = list(in_batches(current.demonstrations, settings.questions_per_step))
        policy.train()
        with progress_bar("warm start") as advance:
            for index, batch in enumerate(batches):
                advance(index, len(batches))
                rise, fall = min(1.0, (step + 1) / _WARMUP_STEPS), 1 - (number + index / len(batches)) / count
                optimizer.param_groups[0]["lr"] = settings.learning_rate * rise * fall
                loss = imitation_loss(policy, batch, config)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(trainable, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                if step % 10 == 0:
                    give_back_freed_memory()
                step += 1
                folder.append(folder.warm_start, {"step": step, "loss": round(loss.item(), 6), **current.figures})
            advance(len(batches), len(batches))
    log.info("warm start: %d steps", step)
    return step


def imitation_loss(
    policy: nn.Module, demonstrations: Sequence[Demonstration], config: TrainConfig | None = None
) -> Tensor:
    """Mean negative log-likelihood of the tokens in the spans, all packed in one row where `packing` is on."""
    config = config or TrainConfig()
    weights = next(policy.parameters())
    sequences = [np.array(demonstration.ids, np.int64) for demonstration in demonstrations]
    targets = [np.concatenate([np.arange(*span) for span in demonstration.spans]) for demonstration in demonstrations]
    with torch.autocast(weights.device.type, torch.bfloat16, enabled=weights.dtype == torch.bfloat16):
        kind = attention_kind(weights.device) if config.packing else None
        budget = config.max_tokens_per_micro_batch
        logps, _, _ = token_logps(policy, sequences, targets, 1.0, attention=kind, budget=budget)
    return -logps.mean()
