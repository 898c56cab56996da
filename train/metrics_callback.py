"""The records of a run: metrics.jsonl, rollouts.jsonl, warnings of a collapse, and a progress bar."""

import logging
import math
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..configs.schema import RolloutConfig
from ..logs import progress_bar
from ..rollouts.policy import torch_dtype
from ..storage import logged_objects
from .loss import DIFFERENCE
from .metrics import FINAL_REWARD, turns_of
from .sharding import uses_deepspeed

if TYPE_CHECKING:
    from .trainer import TreeTrainer

log = logging.getLogger(__name__)

SAMPLED = 100_000
"""Maximum number of compared weights per process; the standard error of the share is then below .002."""
WINDOW = 10
"""Steps over which a collapse is looked for."""
LEAST_ENTROPY = 0.01
"""Nats per sampled token."""
LOGP_DIFFERENCE = {torch.float32: 0.01, torch.bfloat16: 0.15}
"""Mean |log p − log q| of a token, in nats. Measured with the transformers engine on SmolLM2-135M: 4e-6 in float32, .05
in bfloat16, .035 under autocast."""

Figure = TypeVar("Figure", float, float | None)


class MetricsCallback(TrainerCallback):
    """Makes, writes and shows the record of every step, in the main process; `close` ends the progress bar."""

    def __init__(self, trainer: "TreeTrainer", changes: "WeightChanges") -> None:
        run = trainer.run
        self.trainer, self.folder, self.changes = trainer, trainer.folder, changes
        bound = logp_bound(run.rollout, torch_dtype(run.policy), run.train.staleness)
        self.guard = CollapseGuard(bound, run.train.learning_rate)
        self._started, self._bar = time.perf_counter(), ExitStack()
        self.close = self._bar.close

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Replay the records of earlier starts to the guard, and draw the bar."""
        for record in logged_objects(self.folder.metrics):
            self.guard.look(record)
        self._advance = self._bar.enter_context(progress_bar(self.trainer.run.name))
        self._advance(state.global_step, state.max_steps)
        self._started = time.perf_counter()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        """Complete and write the record of a step, and some of its trees; show the rewards of a step or a validation.
        The time of a validation does not count toward the next step."""
        logs = {} if logs is None else logs
        is_step = "loss" in logs
        if is_step:
            self._complete(logs)
        else:
            self._started = time.perf_counter()
        for name, label in (("reward", "step"), ("eval_reward", "validation at step")):
            if rewards := [f"turn {turn} reward {logs[key]:.3f}" for turn, key in turns_of(logs, name)]:
                seconds = f"  {logs['seconds/step']:.1f} s" if "seconds/step" in logs else ""
                log.info("%s %d/%d  %s%s", label, state.global_step, state.max_steps, "  ".join(rewards), seconds)
        self._advance(state.global_step, state.max_steps)
        if not is_step:
            return
        record: dict[str, float] = {"step": state.global_step, **logs}
        self.folder.append(self.folder.metrics, record)
        if (rollout := self.trainer.rollout) is not None and rollout.logged:
            trees = ({"step": state.global_step, **tree} for tree in rollout.logged)
            self.folder.append(self.folder.rollouts, *trees)
        for finding in self.guard.look(record):
            log.warning("step %d: %s", state.global_step, finding)

    def _complete(self, record: dict[str, float]) -> None:
        """Add times, throughput, memory and changed weights to the trainer's figures of a step."""
        now = time.perf_counter()
        spent, self._started = now - self._started, now
        seconds = {**self.trainer.step_trees.seconds, **self.trainer.tree_sampler.clock.read()}
        sampling = ("wait",) if "wait" in seconds else ("generate", "retrieve", "score")
        record |= self.changes.read()
        record |= {f"seconds/{name}": seconds.get(name, 0.0) for name in {*seconds, "generate", "retrieve", "score"}}
        record["seconds/step"] = spent
        record["seconds/update"] = spent - sum(record[f"seconds/{name}"] for name in sampling)
        record["throughput/tokens"] = record["tokens/sampled"] / spent
        record["throughput/rollouts"] = record.pop("paths") / spent
        record["memory/peak_gib"] = peak_memory_gib()
        record |= rounded(record)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """The time of saving does not count toward the next step."""
        self._started = time.perf_counter()


def rounded(record: Mapping[str, Figure]) -> dict[str, Figure]:
    """A record with six significant digits, as it is logged."""
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in record.items()}


def peak_memory_gib() -> float:
    """Peak memory: of the GPU since the last call, or without a GPU of this process since its start."""
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


class WeightChanges(TrainerCallback):
    """The share of trained weights that a step changes, from a random sample.

    No curve reveals rounding: a bfloat16 weight stays unchanged if its update is below half a unit in the last place.
    DeepSpeed steps float32 copies, which never round a step away: with it nothing is measured.
    """

    def __init__(self, trainer: "TreeTrainer") -> None:
        self.trainer = trainer
        self._sample: list[tuple[Tensor, Tensor]] | None = None
        """Pairs of a weight and the indices that are compared of it."""
        self._values: list[Tensor] = []
        self._share: float | None = None

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Draw the sample before the first step, when the checkpoint is loaded."""
        if self._sample is not None or uses_deepspeed():
            return
        trained = [weight for weight in self.trainer.model.parameters() if weight.requires_grad]
        local = [weight.to_local() if isinstance(weight, DTensor) else weight for weight in trained]
        total = sum(weight.numel() for weight in local)
        draw = torch.Generator().manual_seed(self.trainer.run.seed)
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
        totals = self.trainer.processes.all_gather((changed, sum(map(len, previous))))
        self._share = sum(count for count, _ in totals) / max(1, sum(compared for _, compared in totals))

    def read(self) -> dict[str, float]:
        """`changed_weights` of the last step, from 0 to 1; empty if no step was measured since the last call."""
        share, self._share = self._share, None
        return {} if share is None else {"changed_weights": share}


def logp_bound(rollout: RolloutConfig, dtype: torch.dtype, staleness: int = 0) -> float:
    """The bound on the mean |log p − log q| of a run that computes in `dtype`; infinite where older weights sample on
    purpose. With top_p < 1 the sampler renormalizes over the nucleus, whose mass is at least top_p."""
    return math.inf if staleness else LOGP_DIFFERENCE[dtype] - math.log(rollout.top_p)


class CollapseGuard:
    """Warns, by means over the newest WINDOW steps, that the policy has collapsed or that the arithmetic is wrong.

    Consumes the records of metrics.jsonl in order; a resumed run replays those of its earlier starts.
    """

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
