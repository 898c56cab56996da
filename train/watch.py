"""Watching a run: metrics.jsonl, rollouts.jsonl, the progress bar, Weights & Biases, and a clean stop on a signal."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback

from ..rollouts.memory import give_back_freed_memory
from ..rollouts.tree import Node, Tree
from .run_folder import RunFolder

log = logging.getLogger(__name__)


class Watcher(TrainerCallback):
    """Records every optimizer step and shows how the run goes. `trainer` is set once it exists."""

    def __init__(self, folder: RunFolder, rollouts_per_step: int, tracker: Any = None) -> None:
        self.folder, self.rollouts_per_step, self.tracker = folder, rollouts_per_step, tracker
        self.trainer: Any = None
        self._started = time.perf_counter()
        self._losses: dict[str, float] = {}
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Show the bar from where the run starts or goes on."""
        self._started = time.perf_counter()
        self._bar.start()
        self._task = self._bar.add_task("", total=state.max_steps, completed=state.global_step, said="first rollout …")

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **_: Any) -> None:
        """TRL logs before `on_step_end` of the same step in no fixed order: keep its figures for the record."""
        if self.trainer is None or not logs or "loss" not in logs:
            return
        names = ("loss", "grad_norm", "entropy", "learning_rate", "kl", "clip_ratio/region_mean")
        self._write(state.global_step, {name: float(logs[name]) for name in names if name in logs})

    def _write(self, step: int, losses: Mapping[str, float]) -> None:
        trainer = self.trainer
        now = time.perf_counter()
        seconds = trainer.grower.clock.read()
        record: dict[str, float] = {"step": step, **trainer.last_metrics, **trainer.mismatch.read(), **losses}
        for activity in ("generate", "retrieve", "score"):
            record[f"seconds/{activity}"] = seconds.get(activity, 0.0)
        record["seconds/update"] = trainer.update_seconds
        record["seconds/step"] = now - self._started
        record["tokens/packed"], record["tokens/flat"] = trainer.packed_tokens, trainer.flat_tokens
        self._started = now
        record = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in record.items()}
        self.folder.append(self.folder.metrics, record)
        for tree in trainer.trees[: self.rollouts_per_step]:
            self.folder.append(self.folder.rollouts, {"step": step, **describe(tree)})
        if self.tracker is not None:
            self.tracker.log({name: value for name, value in record.items() if name != "step"}, step=step)
        said = "  ".join(
            f"turn {turn} reward {record[key]:.3f}" for turn in (1, 2, 3, 4) if (key := f"reward/turn{turn}") in record
        )
        self._bar.update(self._task, completed=step, said=f"{said}  {record['seconds/step']:.1f} s/step")
        log.log(
            logging.DEBUG if sys.stderr.isatty() else logging.INFO,
            "step %d/%d  %s  %.1f s", step, trainer.state.max_steps, said, record["seconds/step"],
        )  # fmt: skip

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Saving is not part of the next step's seconds."""
        self._started = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start every step without the gaps that the one before left in memory."""
        give_back_freed_memory()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the bar."""
        self.close()

    def close(self) -> None:
        """Close the bar, whatever ended the run."""
        self._bar.stop()


class StopOnSignal(TrainerCallback):
    """Ends a run so that it can go on: SIGTERM and SIGUSR1, what a cluster sends before it takes the node, after the
    step with a checkpoint; Ctrl-C at once, except between the first changed weight of a step and the step's record."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._changing = False
        self._before: dict[int, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Listen while training runs; only the main thread of a process can."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and not self._changing:
            raise KeyboardInterrupt
        self.received = number

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """From here on the weights are those of neither step."""
        self._changing = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The step before is whole: weights, record and, where one was due, checkpoint."""
        self._changing = False
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Ask the trainer to save and stop."""
        if self.received is not None:
            log.warning("received %s: saving a checkpoint and stopping", signal.Signals(self.received).name)
            control.should_save = control.should_training_stop = True
        return control

    def restore(self) -> None:
        """Give the signals back to who had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def describe(tree: Tree) -> dict[str, Any]:
    """A tree as plain data: what was asked, sampled, found and earned."""

    def one(node: Node) -> dict[str, Any]:
        return {
            "turn": node.turn,
            "text": node.text,
            "rewrites": list(node.rewrite.rewrites),
            "failure": node.rewrite.failure,
            "ranking": [hit.document.id for hit in node.ranking],
            "metrics": node.metrics,
            "reward": node.reward,
            "children": [one(child) for child in node.children],
        }

    return {
        "question_id": tree.question.id,
        "question": tree.question.text,
        "turns": [one(root) for root in tree.roots],
    }
