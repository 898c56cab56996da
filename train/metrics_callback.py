"""The records of a run: metrics.jsonl, rollouts.jsonl, what the collapse guard says of them, and a progress bar."""

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..logs import progress_bar
from ..storage import logged_objects
from .guard import CollapseGuard
from .metrics import turns_of
from .run_folder import RunFolder
from .weight_changes import WeightChanges

if TYPE_CHECKING:
    from .trainer import TreeTrainer

log = logging.getLogger(__name__)

Figure = TypeVar("Figure", float, float | None)


class MetricsCallback(TrainerCallback):
    """Makes, writes and shows the record of every step, in the main process; `close` ends the progress bar."""

    def __init__(self, trainer: "TreeTrainer", folder: RunFolder, guard: CollapseGuard, changes: WeightChanges) -> None:
        self.trainer, self.folder, self.guard, self.changes = trainer, folder, guard, changes
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
    import resource

    import torch

    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
