"""The collapse guard: detects in the records of a run that training has stopped working.

Each sign is computed from the mean over the newest `window` steps. Four signs mean that the policy collapses: a drop of
the last turn's reward (a turn that stopped is the last of its path) below its best mean so far, and low entropy,
copies, or groups without signal in *every* turn (a first turn that always repeats the question is harmless; a policy
that does so in all turns has stopped searching). Two signs mean that the arithmetic is wrong although curves look
healthy: optimizer steps that change almost no weight, and a sampler that differs from the trained model. A sign is
reported when it appears; if it persists for `patience` steps and `action` is `stop`, the run ends. The guard depends on
the records alone, so a resumed run restores it by replaying them.
"""

import math
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

import torch

from ..configs.schema import RolloutConfig
from ..configs.training import GuardConfig
from ..errors import CollapseError
from .metrics import FINAL_REWARD, turns_of
from .mismatch import DIFFERENCE
from .run_folder import RunFolder, step_of


@dataclass(frozen=True, slots=True)
class Sign:
    """A warning sign in the newest window."""

    name: str
    """The setting with its limit, such as reward_drop."""
    finding: str
    """One sentence: the observed value, and the limit."""
    meaning: str = "the policy collapsed"
    remedy: str = ""
    """What to do besides taking an earlier checkpoint; may be empty."""


LOGP_DIFFERENCE = {torch.float32: 0.01, torch.bfloat16: 0.15}
"""The bounds of `logp_difference: auto`. Measured with the transformers engine on SmolLM2-135M: means of 4e-6 nats in
float32, .05 in bfloat16 and .035 under autocast. Another kernel with the same dtype
stays within a few times that; a sampler with different weights, positions or temperature does not."""


def logp_bound(
    setting: float | Literal["auto"] | None, rollout: RolloutConfig, dtype: torch.dtype, staleness: int = 0
) -> float | None:
    """The bound on the mean |log p − log q| of a run that computes in `dtype` (float32 or bfloat16).

    With top_p < 1 the sampler renormalizes over the nucleus, whose mass is at least top_p. Where trees are sampled with
    older weights on purpose, `auto` bounds nothing.
    """
    if staleness and setting == "auto":
        return None
    least_mass = min(rollout.top_p_of(turn) for turn in range(1, len(rollout.branching) + 1))
    return LOGP_DIFFERENCE[dtype] - math.log(least_mass) if setting == "auto" else setting


class CollapseGuard:
    """Consumes the records of metrics.jsonl in order."""

    def __init__(self, config: GuardConfig, logp_bound: float | None = None, learning_rate: float = 0.0) -> None:
        self.config, self.logp_bound, self.learning_rate = config, logp_bound, learning_rate
        self.collapsed: Sign | None = None
        """The sign that persisted for `patience` steps, where `action` is stop."""
        self._rows: deque[Mapping[str, float]] = deque(maxlen=config.window)
        self._best: tuple[float, int] | None = None
        self._since: dict[str, int] = {}

    def look(self, record: Mapping[str, float]) -> list[Sign]:
        """Process the record of one step and return the signs that are new."""
        if self.config.action == "off":
            return []
        self._rows.append(record)
        if len(self._rows) < self.config.window:
            return []
        step = int(record["step"])
        signs = {sign.name: sign for sign in self._signs(step)}
        new = [sign for name, sign in signs.items() if name not in self._since]
        self._since = {name: self._since.get(name, step) for name in signs}
        if self.config.action == "stop":
            lasting = [name for name, since in self._since.items() if step - since >= self.config.patience]
            self.collapsed = signs[lasting[0]] if lasting else None
        return new

    def _signs(self, step: int) -> Iterator[Sign]:
        config, span = self.config, f"over the last {self.config.window} steps"
        reward = _final_reward(self._rows)
        if config.reward_drop is not None and reward is not None:
            if self._best is None or reward > self._best[0]:
                self._best = reward, step
            best, best_step = self._best
            if reward < (1 - config.reward_drop) * best:
                yield Sign(
                    "reward_drop",
                    f"the last turn's mean reward {span} is {reward:.3f}; it was {best:.3f} at step {best_step} "
                    f"(limit: a loss of {config.reward_drop:.0%})",
                )
        entropy = self._means("entropy")
        if config.entropy_floor is not None and entropy and max(entropy) < config.entropy_floor:
            yield Sign(
                "entropy_floor",
                f"no turn's entropy {span} is above {max(entropy):.2g} nats per token "
                f"(limit: {config.entropy_floor:g}): the policy always says the same",
            )
        for name, limit, label in (
            ("copy", config.copy_share, "of the rewrites repeat the question or an earlier turn"),
            ("zero_variance", config.zero_variance, "of the groups have no signal to learn from"),
        ):
            shares = self._means(name)
            if limit is not None and shares and min(shares) >= limit:
                setting = "copy_share" if name == "copy" else name
                yield Sign(setting, f"{min(shares):.1%} {label} in every turn {span} (limit: {limit:.0%})")
        yield from self._unchanged_weights(span)
        yield from self._sampler_mismatch(span)

    def _unchanged_weights(self, span: str) -> Iterator[Sign]:
        """Uses only steps that should have moved weights: those with a gradient and more than 1 % of the peak learning
        rate (not the start of a warm-up or the end of a schedule)."""
        limit, floor = self.config.changed_weights, self.learning_rate / 100
        shares = [
            row["changed_weights"]
            for row in self._rows
            if "changed_weights" in row and row.get("learning_rate", math.inf) > floor and row.get("grad_norm", 1.0) > 0
        ]
        if limit is not None and len(shares) * 2 > self.config.window and fmean(shares) < limit:
            yield Sign(
                "changed_weights",
                f"an optimizer step changes {fmean(shares):.2%} of the trained weights {span} (limit: {limit:.0%})",
                "the weights do not move",
                "The updates are smaller than the weights' type can hold: train float32 weights (policy.dtype=auto) or "
                f"raise train.learning_rate, which is {self._rows[-1].get('learning_rate', math.nan):g} now",
            )

    def _sampler_mismatch(self, span: str) -> Iterator[Sign]:
        limit, name = self.logp_bound, f"{DIFFERENCE}/mean"
        values = [row[name] for row in self._rows if name in row]
        if limit is not None and values and not fmean(values) <= limit:  # also true for NaN
            yield Sign(
                "logp_difference",
                f"a sampled token's log-probability differs by {fmean(values):.3g} nats on average {span} between the "
                f"engine that sampled it and the model that is trained (limit: {limit:.3g})",
                "the sampler is not the policy that is trained",
                "Sample with rollout.engine=transformers to see whether the engine is the cause; if it is, give it the "
                "type of the trainer (policy.dtype), look whether it takes the weights that are sent, and compare its "
                "temperature and context length. A larger rounding that is known may be allowed with "
                "train.guard.logp_difference",
            )

    def _means(self, name: str) -> list[float]:
        """Mean over the window of a per-turn metric, first turn to last; turns without a value are omitted."""
        turns = sorted({key for row in self._rows for _, key in turns_of(row, name)})
        return [fmean(row[key] for row in self._rows if key in row) for key in turns]


def _final_reward(rows: Iterable[Mapping[str, float]]) -> float | None:
    """Mean reward of the last turn over some steps; of a step with stops, that of the last turn of each path. None
    without a reward."""
    rows = list(rows)
    turns = sorted({turn for row in rows for turn in turns_of(row, "reward")})
    last = turns[-1][1] if turns else FINAL_REWARD
    values = [value for row in rows if (value := row.get(FINAL_REWARD, row.get(last))) is not None]
    return fmean(values) if values else None


def best_known(checkpoints: Sequence[Path], best: Path, records: Sequence[Mapping[str, float]], window: int) -> str:
    """Describe the best policy of a collapsed run: that of validation, else the checkpoint with the highest mean reward
    of the last turn over the preceding `window` steps."""
    if best.exists():
        return f"the best by validation is {best}"
    values: dict[Path, float] = {}
    for path in checkpoints:
        step = step_of(path)
        rows = [row for row in records if step - window < row["step"] <= step]
        if (reward := _final_reward(rows)) is not None:
            values[path] = reward
    if not values:
        return "no checkpoint is left from before"
    path = max(values, key=lambda checkpoint: values[checkpoint])
    return f"of the checkpoints that are left the best by training reward ({values[path]:.3f}) is {path}"


def refuse_collapse(guard: CollapseGuard, folder: RunFolder, step: int) -> None:
    """Raise CollapseError if the guard ended the run."""
    sign = guard.collapsed
    if sign is None:
        return
    best = best_known(folder.numbered(), folder.best, folder.read(folder.metrics), guard.config.window)
    remedy = f" {sign.remedy}." if sign.remedy else ""
    raise CollapseError(
        f"{sign.meaning} and the run stops at step {step}: {sign.finding}; {best}.{remedy} "
        f"Evaluate it with `querylect eval {shlex.quote(str(folder.path))} --checkpoint NAME`; to train on all the "
        "same: --resume train.guard.action=warn."
    )
