"""Validate the policy during training, and save the best one.

Answers a sample of the validation split greedily, one answer per turn, as `querylect eval` does. The score is the
reward's metric, less the price of searches where they cost, at the turn where it is highest, which is the turn that
users of the policy get (rollouts/turns.py). A policy better than all previous ones is saved in `best/`, which
checkpoint rotation does not remove. The random states of training are restored afterwards.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..configs.schema import NET, TrainConfig
from ..data.leakage import overlap_with_train
from ..data.sampling import draw
from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..errors import ConfigError, DataError
from ..rollouts.engines.base import WeightSync
from ..rollouts.tree import Tree
from ..rollouts.tree_sampler import Clock, TreeSampler
from ..rollouts.turns import ValidationRecord, best_value, winning_turn
from ..storage import parse_json
from .answers import reader_metrics
from .distributed.processes import Processes, all_trees
from .reuse import random_streams
from .run_folder import RunFolder

log = logging.getLogger(__name__)


def validation_questions(settings: TrainConfig, client: EnvironmentApi, train: Sequence[Question]) -> list[Question]:
    """The validation questions of this run; empty if `train.validate_steps` is 0. Raises as `draw_validation`."""
    if not settings.validate_steps:
        return []
    reason, remedy = f"train.validate_steps is {settings.validate_steps} and ", ", or set train.validate_steps to 0"
    return draw_validation(settings, client, train, reason, remedy)


def draw_validation(
    settings: TrainConfig, client: EnvironmentApi, train: Sequence[Question], reason: str = "", remedy: str = ""
) -> list[Question]:
    """A sample of the validation split; `reason` and `remedy` begin and end the messages of errors.

    Raises ConfigError if the environment has no validation split, DataError if it shares questions with `train`.
    """
    splits = client.info().splits
    if not splits.get("validation"):
        raise ConfigError(
            f"{reason}the environment has no validation questions (its splits: {splits}). Add the split (BEIR: "
            f"qrels/dev.tsv){remedy}."
        )
    questions = client.questions("validation")
    if overlap := overlap_with_train(client.info().name, "validation", questions, train):
        raise DataError(f"{overlap[0]} Take these questions out of one of the two{remedy}.")
    return draw(questions, settings.validation_questions, seed=0)


@dataclass(eq=False)
class Validator(TrainerCallback):
    """Validates the last finished step when the next one begins, and the final step at the end.

    `save` writes the policy into a folder, `weight_sync` updates the engine, `on_record` receives every record.
    """

    settings: TrainConfig
    folder: RunFolder
    questions: Sequence[Question]
    tree_sampler: TreeSampler
    weight_sync: WeightSync
    save: Callable[[Path], None]
    on_record: Callable[[ValidationRecord], None] | None
    processes: Processes = field(default_factory=Processes)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Validate the step that has just ended, or that the run resumes from, if it is due."""
        if state.global_step % self.settings.validate_steps == 0:
            self._validate(state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Validate the final step; a run that was stopped earlier does so after its resume."""
        if state.global_step >= state.max_steps:
            self._validate(state.global_step)

    def _validate(self, step: int) -> None:
        log_file = self.folder.validation
        if self.processes.on_main_process(lambda: any(row["step"] == step for row in self.folder.read(log_file))):
            return
        record = self._measure(step)
        self._keep_best(step, record)
        self.processes.on_main_process(lambda: self._record(record))

    def _record(self, record: ValidationRecord) -> None:
        self.folder.append(self.folder.validation, record)
        if self.on_record is not None:
            self.on_record(record)

    def _measure(self, step: int) -> dict[str, float | None]:
        started = time.perf_counter()
        restore, clock = random_streams(), self.tree_sampler.clock
        self.tree_sampler.clock = Clock()
        rank, count = self.processes.rank, self.processes.count
        local_questions, max_count = self.questions[rank::count], len(self.questions[::count])
        turns = len(self.tree_sampler.rollout.branching)
        try:
            self.weight_sync.refresh()
            answered = self.tree_sampler.answer(local_questions, turns, at_least=max_count)
            trees = all_trees(self.processes, answered)
            self.weight_sync.sleep()
        finally:
            restore()
            self.tree_sampler.clock = clock
        record: dict[str, float | None] = {
            "step": step,
            **validation_metrics(trees),
            "tokens/sampled": sum(tree.tokens for tree in trees),
            "searches": sum(tree.searches for tree in trees),
            "seconds": time.perf_counter() - started,
            **reader_metrics(self.tree_sampler.client, self.processes),
        }
        reward = self.tree_sampler.reward
        if reward.search_price:
            record |= net_values(trees, reward.signal)
        record["turn"] = winning_turn(record, reward.objective, turns)
        return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in record.items()}

    def _keep_best(self, step: int, record: ValidationRecord) -> None:
        if record["failed_searches"]:
            log.warning(
                "%d validation answers of step %d could not be scored: it does not count for best/",
                record["failed_searches"], step,
            )  # fmt: skip
            return
        best = self.processes.on_main_process(lambda: best_of(self.folder))
        metric, turns = self.tree_sampler.reward.objective, len(self.tree_sampler.rollout.branching)
        if best is None or best_value(record, metric, turns) > best_value(best, metric, turns):
            with self.processes.staged(self.folder.best) as path:
                self.save(path)
                if self.processes.is_main_process:
                    measured = {name: value for name, value in record.items() if name != "seconds"}
                    (path / "best.json").write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")


def best_of(folder: RunFolder) -> ValidationRecord | None:
    """The validation record of the policy in `best/`, or None."""
    path = folder.best / "best.json"
    return parse_json(path.read_text(encoding="utf-8")) if path.exists() else None


def validation_metrics(trees: Sequence[Tree]) -> dict[str, float]:
    """Means per turn over the scored answers, and the number of failed searches.

    A path that stopped counts in every later turn with the turn in which it did.
    """
    nodes = [node for tree in trees for node in tree.walk()]
    record: dict[str, float] = {"questions": len(trees), "failed_searches": sum(node.reward is None for node in nodes)}
    for turn in range(1, max((tree.turns for tree in trees), default=0) + 1):
        reached = [node for node in nodes if node.turn == turn or (node.turn < turn and node.rewrite.stop)]
        scored = [node for node in reached if node.reward is not None]
        if scored:
            record[f"reward/turn{turn}"] = fmean(node.reward or 0.0 for node in scored)
            for metric in sorted({name for node in scored for name in node.metrics}):
                values = [node.metrics.get(metric, 0.0) for node in scored]
                record[f"{metric.split('@')[0]}/turn{turn}"] = fmean(values)
            record[f"format/turn{turn}"] = fmean(node.rewrite.format_ok for node in scored)
    return record


def net_values(trees: Sequence[Tree], metric: str) -> dict[str, float]:
    """`net/turnN`: the mean of a metric in turn N less the price of the searches up to it, over the scored paths.

    A path that stopped counts in every later turn with the turn in which it did.
    """
    paths = [path for tree in trees for path in tree.paths()]
    record: dict[str, float] = {}
    for turn in range(1, max((tree.turns for tree in trees), default=0) + 1):
        reached = [path[:turn] for path in paths if len(path) >= turn or path[-1].rewrite.stop]
        scored = [path for path in reached if path[-1].reward is not None]
        if scored:
            values = (path[-1].metrics.get(metric, 0.0) - sum(node.cost for node in path) for path in scored)
            record[f"{NET}/turn{turn}"] = fmean(values)
    return record
