"""The collapse guard: finds in the records of a run that training has stopped working.

Each sign is computed from the mean over the newest WINDOW steps. The policy has collapsed where the reward of the last
turn halved, or where in *every* turn the entropy is near 0, the rewrites copy the question or an earlier turn, or no
group has a signal. The arithmetic is wrong where optimizer steps change almost no weight, or where the sampler differs
from the trained model. A sign is reported when it appears; with `train.guard: stop` one that lasts PATIENCE steps ends
the run. All of it depends on the records alone, so a resumed run replays them.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Literal

import torch

from ..configs.schema import RolloutConfig
from .loss import DIFFERENCE
from .metrics import FINAL_REWARD, turns_of

WINDOW = PATIENCE = 10
LEAST_REWARD = 0.5
"""As a share of the best window."""
LEAST_ENTROPY = 0.01
"""Nats per sampled token."""
MOST_SHARE = 0.95
"""Of rewrites that are copies, and of groups without signal."""
LEAST_CHANGED = 0.1
"""Share of weights that change in a step with a gradient and more than 1 % of the peak learning rate."""
LOGP_DIFFERENCE = {torch.float32: 0.01, torch.bfloat16: 0.15}
"""Mean |log p − log q| of a token, in nats. Measured with the transformers engine on SmolLM2-135M: 4e-6 in float32, .05
in bfloat16, .035 under autocast."""


def logp_bound(rollout: RolloutConfig, dtype: torch.dtype, staleness: int = 0) -> float | None:
    """The bound on the mean |log p − log q| of a run that computes in `dtype`; None where older weights sample on
    purpose. With top_p < 1 the sampler renormalizes over the nucleus, whose mass is at least top_p."""
    return None if staleness else LOGP_DIFFERENCE[dtype] - math.log(rollout.top_p)


class CollapseGuard:
    """Consumes the records of metrics.jsonl in order."""

    def __init__(
        self, action: Literal["off", "warn", "stop"], logp_bound: float | None = None, learning_rate: float = 0.0
    ) -> None:
        """`learning_rate`: the peak."""
        self.action, self.logp_bound, self.learning_rate = action, logp_bound, learning_rate
        self.collapsed: str | None = None
        """What lasted PATIENCE steps, where `action` is stop."""
        self._rows: deque[Mapping[str, float]] = deque(maxlen=WINDOW)
        self._best = 0.0
        self._since: dict[str, int] = {}

    def look(self, record: Mapping[str, float]) -> list[str]:
        """Process the record of one step and describe the signs that are new."""
        self._rows.append(record)
        if self.action == "off" or len(self._rows) < WINDOW:
            return []
        signs, step = dict(self._signs()), int(record["step"])
        new = [finding for name, finding in signs.items() if name not in self._since]
        self._since = {name: self._since.get(name, step) for name in signs}
        lasting = [signs[name] for name, since in self._since.items() if step - since >= PATIENCE]
        self.collapsed = lasting[0] if lasting and self.action == "stop" else None
        return new

    def _signs(self) -> Iterator[tuple[str, str]]:
        """(metric, what it is and should be)."""
        final = [row[FINAL_REWARD] for row in self._rows if FINAL_REWARD in row]
        rewards = [fmean(final)] if len(final) == len(self._rows) else self._means("reward")
        if rewards:
            self._best = max(self._best, rewards[-1])
            if rewards[-1] < LEAST_REWARD * self._best:
                yield "reward", f"the last turn's mean reward is {rewards[-1]:.3f}; it was {self._best:.3f}"
        entropy, copies, ties = map(self._means, ("entropy", "copy", "zero_variance"))
        if entropy and max(entropy) < LEAST_ENTROPY:
            yield "entropy", f"no turn's entropy is above {max(entropy):.2g} nats per token"
        if copies and min(copies) >= MOST_SHARE:
            yield "copy", f"{min(copies):.1%} of the rewrites repeat the question or an earlier turn, in every turn"
        if ties and min(ties) >= MOST_SHARE:
            yield "zero_variance", f"{min(ties):.1%} of the groups have no signal, in every turn"
        changed = [row["changed_weights"] for row in self._rows if self._should_change(row)]
        if 2 * len(changed) > WINDOW and fmean(changed) < LEAST_CHANGED:
            remedy = "Train float32 weights (policy.dtype=auto), or raise train.learning_rate"
            yield "changed_weights", f"a step changes {fmean(changed):.2%} of the trained weights. {remedy}"
        differences = [row[f"{DIFFERENCE}/mean"] for row in self._rows if f"{DIFFERENCE}/mean" in row]
        if self.logp_bound is not None and differences and not fmean(differences) <= self.logp_bound:  # true for NaN
            excess = f"differs by {fmean(differences):.3g} nats, where {self.logp_bound:.3g} is rounding"
            remedy = "Compare with rollout.engine=transformers"
            yield "sampler", f"a token's log-probability in sampler and trained policy {excess}. {remedy}"

    def _should_change(self, record: Mapping[str, float]) -> bool:
        """Whether a step measured its changed weights, and its gradient and learning rate should have changed them."""
        rate, least = record.get("learning_rate", math.inf), self.learning_rate / 100
        return "changed_weights" in record and record.get("grad_norm", 1.0) > 0 and rate > least

    def _means(self, name: str) -> list[float]:
        """Mean over the window of a per-turn metric, first turn to last; turns without a value are omitted."""
        turns = sorted({key for row in self._rows for _, key in turns_of(row, name)})
        return [fmean(row[key] for row in self._rows if key in row) for key in turns]
