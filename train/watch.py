"""Logging of a run: metrics.jsonl, rollouts.jsonl, the view, the collapse guard, trackers."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..data.history import records_of
from ..rollouts.memory import give_back_freed_memory, peak_memory_gib
from ..rollouts.tree import Node, Tree
from ..rollouts.turns import ValidationRecord
from .guard import CollapseGuard
from .metrics import rows
from .run_folder import RunFolder
from .tracking import Trackers
from .view import LineView
from .weight_changes import WeightChanges

if TYPE_CHECKING:
    from .trainer import TreeTrainer


class Watcher(TrainerCallback):
    """Records and displays every optimizer step. `trainer` is set once it exists."""

    def __init__(
        self, folder: RunFolder, view: LineView, guard: CollapseGuard, trackers: Trackers, changes: WeightChanges
    ) -> None:
        self.folder, self.view, self.guard, self.trackers, self.changes = folder, view, guard, trackers, changes
        self.trainer: TreeTrainer | None = None
        self._started = time.perf_counter()
        self._table_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Show the start of the run; replay earlier records to the guard after a resume."""
        for record in self.folder.read(self.folder.metrics):
            self.guard.look(record)
        self._table_step = int(state.global_step)
        self._started = time.perf_counter()
        self.trackers.begin(args, state)
        if not state.global_step:
            self.trackers.log_warm_start(self.folder.read(self.folder.warm_start))
        self.view.begin(state.global_step, state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **_: object,
    ) -> None:
        """Write the record of a step when TRL logs its loss, and check the guard."""
        if self.trainer is None or not logs or "loss" not in logs:
            return
        names = ("loss", "grad_norm", "entropy", "learning_rate", "kl", "clip_ratio/region_mean",
                 "cispo_clip_ratio", "vespo/phi_seq_mean", "entropy_coef")  # fmt: skip
        record = self._write(state.global_step, {name: float(logs[name]) for name in names if name in logs})
        for sign in self.guard.look(record):
            self.view.warn(f"step {state.global_step}: {sign.finding}")
        if self.guard.collapsed is not None:
            control.should_save = control.should_training_stop = True

    def _write(self, step: int, losses: Mapping[str, float]) -> dict[str, float]:
        trainer = self.trainer
        assert trainer is not None
        now = time.perf_counter()
        seconds = {**trainer.rollout_seconds, **trainer.grower.clock.read()}
        searched = trainer.grower.searched.read()
        record: dict[str, float] = {"step": step, **trainer.last_metrics, **trainer.mismatch.read(), **losses}
        record |= self.changes.read()
        for activity in ("generate", "retrieve", "score"):
            record[f"seconds/{activity}"] = seconds.get(activity, 0.0)
        if "wait" in seconds:
            record["seconds/wait"] = seconds["wait"]
        record |= {f"seconds/retrieve/{turn}": spent for turn, spent in searched.items()}
        record["seconds/update"] = trainer.update_seconds
        record["seconds/step"] = now - self._started
        record["tokens/packed"], record["tokens/flat"] = trainer.packed_tokens, trainer.flat_tokens
        record["tokens/sampled"] = trainer.sampled_tokens
        record["searches"] = trainer.searches
        record["throughput/tokens"] = trainer.sampled_tokens / record["seconds/step"]
        record["throughput/rollouts"] = trainer.sampled_paths / record["seconds/step"]
        record |= trainer.reader_metrics
        record["memory/peak_gib"] = peak_memory_gib()
        self._started = now
        record = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in record.items()}
        self.folder.append(self.folder.metrics, record)
        settings = trainer.run
        trees = trainer.trees[: settings.train.log_rollouts]
        if trees:
            self.folder.append(self.folder.rollouts, *({"step": step, **describe(tree)} for tree in trees))
        table_is_due = bool(trees) and self._table_is_due(step, settings.tracking.table_steps)
        self.trackers.log(record, rows(step, trees, settings.reward.signal) if table_is_due else ())
        self._table_step = step if table_is_due else self._table_step
        self.view.step(record, trainer.trees[0] if trainer.trees else None)
        return record

    def _table_is_due(self, step: int, every: int) -> bool:
        """True for step 1 and whenever another `every` steps have passed since the last table; never for 0."""
        return every > 0 and (step == 1 or step // every > self._table_step // every)

    def validated(self, record: ValidationRecord) -> None:
        """Show a validation; its time does not count toward the next step."""
        self.view.validated(record)
        self.trackers.log(record, prefix="eval_")
        self._started = time.perf_counter()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """The time of saving does not count toward the next step."""
        self._started = time.perf_counter()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Release cached memory blocks of the previous step."""
        give_back_freed_memory()


def describe(tree: Tree) -> dict[str, JsonValue]:
    """A tree as plain data: question, samples, rankings and rewards."""

    def plain_node(node: Node) -> dict[str, JsonValue]:
        return {
            "turn": node.turn,
            "text": node.text,
            "rewrites": list(node.rewrite.rewrites),
            "failure": node.rewrite.failure,
            **({"stop": True} if node.rewrite.stop else {}),
            "ranking": [hit.document.id for hit in node.ranking],
            "metrics": dict(node.metrics),
            "reward": node.reward,
            **({"versions": list(node.versions)} if node.versions is not None else {}),
            "children": [plain_node(child) for child in node.children],
        }

    return {
        "question_id": tree.question.id,
        "question": tree.question.text,
        **({"history": [{**entry} for entry in records_of(tree.question.history)]} if tree.question.history else {}),
        "turns": [plain_node(root) for root in tree.roots],
    }
