"""Validate the policy during training, and save the best one.

Answers a sample of the validation split greedily, one answer per turn, as `querylect eval` does. The score is the
reward's metric, less the price of searches where they cost, at the turn where it is highest, which is the turn that
users of the policy get (rollouts/checkpoints.py). A policy better than all previous ones is saved in `best/`, which
checkpoint rotation does not remove. The random states of training are restored afterwards.
"""

import json
import logging
import time
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..configs.schema import NET
from ..data.types import Question
from ..rollouts.checkpoints import ValidationRecord, best_record, best_value, winning_turn
from ..rollouts.tree_sampler import Clock
from ..storage import logged_objects
from .answers import reader_metrics
from .metrics import metric_values
from .metrics_callback import rounded
from .step_trees import random_states
from .turns import Turns, gather, turns_of

if TYPE_CHECKING:
    from .trainer import TreeTrainer

log = logging.getLogger(__name__)


class Validator(TrainerCallback):
    """Validates the last finished step when the next one begins, and the final step at the end."""

    def __init__(self, trainer: "TreeTrainer", questions: Sequence[Question]) -> None:
        self.trainer, self.questions = trainer, questions
        self.folder, self.processes, self.tree_sampler = trainer.folder, trainer.processes, trainer.tree_sampler
        self.weight_sync = trainer.step_trees.prefetcher or trainer.step_trees.weight_sync

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Validate the step that has just ended, or that the run resumes from, if it is due."""
        if state.global_step % self.trainer.run.train.validate_steps == 0:
            self._validate(state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Validate the final step; a run that was stopped earlier does so after its resume."""
        if state.global_step >= state.max_steps:
            self._validate(state.global_step)

    def _validate(self, step: int) -> None:
        log_file = self.folder.validation
        if self.processes.on_main_process(lambda: any(row["step"] == step for row in logged_objects(log_file))):
            return
        record = self._measure(step)
        self._keep_best(step, record)
        if self.processes.is_main_process:
            self.folder.append(log_file, record)
            logs = {f"eval_{name}": value for name, value in record.items() if name != "step" and value is not None}
            trainer = self.trainer
            trainer.callback_handler.on_log(trainer.args, trainer.state, trainer.control, logs)

    def _measure(self, step: int) -> dict[str, float | None]:
        started = time.perf_counter()
        restore, clock = random_states(), self.tree_sampler.clock
        self.tree_sampler.clock = Clock()
        rank, count = self.processes.rank, self.processes.count
        depth, reward = len(self.tree_sampler.conversation.rollout.branching), self.tree_sampler.reward
        try:
            self.weight_sync.refresh()
            answered = self.tree_sampler.answer(self.questions[rank::count], depth)
            turns, _ = gather(turns_of(answered, reward.turn_weights), self.processes)
            self.weight_sync.sleep()
        finally:
            restore()
            self.tree_sampler.clock = clock
        record: dict[str, float | None] = {
            "step": step,
            **validation_metrics(turns),
            "tokens/sampled": int(turns.tokens.sum()),
            "searches": int(turns.figure("searched").sum()),
            "seconds": time.perf_counter() - started,
            **reader_metrics(self.tree_sampler.client, self.processes),
        }
        if reward.search_price:
            record |= net_values(turns, reward.signal)
        record["turn"] = winning_turn(record, reward.objective, depth)
        return rounded(record)

    def _keep_best(self, step: int, record: ValidationRecord) -> None:
        if record["failed_searches"]:
            log.warning("step %d does not count for best/: %d searches failed", step, record["failed_searches"])
            return
        best = self.processes.on_main_process(lambda: best_record(self.folder.path))
        metric, turns = self.tree_sampler.reward.objective, len(self.tree_sampler.conversation.rollout.branching)
        if best is None or best_value(record, metric, turns) > best_value(best, metric, turns):
            with self.processes.atomic_folder(self.folder.best) as path:
                self.trainer.save_policy(path)
                if self.processes.is_main_process:
                    measured = {name: value for name, value in record.items() if name != "seconds"}
                    (path / "best.json").write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")


def validation_metrics(turns: Turns) -> dict[str, float]:
    """Means per turn over the scored answers, and the number of failed searches.

    A path that stopped counts in every later turn with the turn in which it did.
    """
    record: dict[str, float] = {"questions": len(turns.questions), "failed_searches": int((~turns.scored).sum())}
    for turn in range(1, turns.depth + 1):
        reached = _reached(turns, turn)
        if reached.any():
            record[f"reward/turn{turn}"] = fmean(turns.figure("reward")[reached])
            record |= {f"{name}/turn{turn}": fmean(values) for name, values in metric_values(turns, reached).items()}
            record[f"format/turn{turn}"] = fmean(turns.figure("format")[reached])
    return record


def net_values(turns: Turns, metric: str) -> dict[str, float]:
    """`net/turnN`: the mean of a metric in turn N less the price of the searches up to it, as in
    `validation_metrics`."""
    net = np.nan_to_num(turns.figure(f"metric/{metric}")) - turns.along_paths(turns.figure("cost"))
    reached = {turn: _reached(turns, turn) for turn in range(1, turns.depth + 1)}
    return {f"{NET}/turn{turn}": fmean(net[rows]) for turn, rows in reached.items() if rows.any()}


def _reached(turns: Turns, turn: int) -> NDArray[np.bool_]:
    """(n,) the scored turns with which the paths count in `turn`."""
    stopped = (turns.turn < turn) & (turns.figure("stopped") == 1)
    reached: NDArray[np.bool_] = ((turns.turn == turn) | stopped) & turns.scored
    return reached
