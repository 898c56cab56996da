"""Warns, by means over the newest WINDOW steps, that the policy has collapsed or that the arithmetic is wrong."""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from statistics import fmean

import torch

from ..configs.schema import RolloutConfig
from .loss import DIFFERENCE
from .metrics import FINAL_REWARD, turns_of

WINDOW = 10
LEAST_ENTROPY = 0.01
"""Nats per sampled token."""
LOGP_DIFFERENCE = {torch.float32: 0.01, torch.bfloat16: 0.15}
"""Mean |log p − log q| of a token, in nats. Measured with the transformers engine on SmolLM2-135M: 4e-6 in float32, .05
in bfloat16, .035 under autocast."""


def logp_bound(rollout: RolloutConfig, dtype: torch.dtype, staleness: int = 0) -> float:
    """The bound on the mean |log p − log q| of a run that computes in `dtype`; infinite where older weights sample on
    purpose. With top_p < 1 the sampler renormalizes over the nucleus, whose mass is at least top_p."""
    return math.inf if staleness else LOGP_DIFFERENCE[dtype] - math.log(rollout.top_p)


class CollapseGuard:
    """Consumes the records of metrics.jsonl in order; a resumed run replays those of its earlier starts."""

    def __init__(self, logp_bound: float = math.inf, learning_rate: float = 0.0) -> None:
        self.logp_bound, self.learning_rate = logp_bound, learning_rate
        self._rows: deque[Mapping[str, float]] = deque(maxlen=WINDOW)
        self._best = 0.0
        self._shown: set[str] = set()

    def look(self, record: Mapping[str, float]) -> list[str]:
        """Process the record of one step and describe the signs that are new."""
        self._rows.append(record)
        signs = dict(self._signs()) if len(self._rows) == WINDOW else {}
        new = [finding for name, finding in signs.items() if name not in self._shown]
        self._shown = set(signs)
        return new

    def _signs(self) -> Iterator[tuple[str, str]]:
        """(metric, what it is and should be)."""
        final = [row[FINAL_REWARD] for row in self._rows if FINAL_REWARD in row]
        if rewards := [fmean(final)] if len(final) == WINDOW else self._means("reward"):
            self._best = max(self._best, rewards[-1])
            if rewards[-1] < self._best / 2:
                yield "reward", f"the last turn's mean reward is {rewards[-1]:.3f}; it was {self._best:.3f}"
        entropy, copies, ties = map(self._means, ("entropy", "copy", "zero_variance"))
        if entropy and max(entropy) < LEAST_ENTROPY:
            yield "entropy", f"no turn's entropy is above {max(entropy):.2g} nats per token"
        if copies and min(copies) >= 0.95:
            yield "copy", f"{min(copies):.1%} of the rewrites repeat the question or an earlier turn, in every turn"
        if ties and min(ties) >= 0.95:
            yield "zero_variance", f"{min(ties):.1%} of the groups have no signal, in every turn"
        moving = [row for row in self._rows if row.get("grad_norm", 1.0) > 0 and "changed_weights" in row]
        changed = [
            row["changed_weights"] for row in moving if row.get("learning_rate", math.inf) > self.learning_rate / 100
        ]
        if 2 * len(changed) > WINDOW and fmean(changed) < 0.1:
            remedy = "Train float32 weights (policy.dtype=auto), or raise train.learning_rate"
            yield "changed_weights", f"a step changes {fmean(changed):.2%} of the trained weights. {remedy}"
        differences = [row[f"{DIFFERENCE}/mean"] for row in self._rows if f"{DIFFERENCE}/mean" in row]
        if differences and not fmean(differences) <= self.logp_bound:  # true for NaN
            excess = f"differs by {fmean(differences):.3g} nats, where {self.logp_bound:.3g} is rounding"
            remedy = "Compare with rollout.engine=transformers"
            yield "sampler", f"a token's log-probability in sampler and trained policy {excess}. {remedy}"

    def _means(self, name: str) -> list[float]:
        """Mean over the window of a per-turn metric, first turn to last; turns without a value are omitted."""
        turns = sorted({key for row in self._rows for _, key in turns_of(row, name)})
        return [fmean(row[key] for row in self._rows if key in row) for key in turns]
