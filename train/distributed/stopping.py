"""Stop a run on a signal such that it can resume exactly.

SIGTERM and SIGUSR1, which clusters send before they reclaim a node, and SIGHUP, which a lost terminal sends, leave a
grace period. A step that is expected to end in time is finished; otherwise it is aborted at once, or when time runs out
unexpectedly, and the checkpoint holds the last finished step. Ctrl-C aborts the step at once. Between the optimizer
step and the record of a step nothing is aborted, because the step completes within moments.
"""

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...configs.schema import TrainConfig
from .abort import AbortStep

log = logging.getLogger(__name__)

REMEMBERED_STEPS = 5
"""The expected duration of a step is the maximum over this many recent steps."""
UNKNOWN_SAVING = 1 / 3
"""Share of the grace period reserved for the checkpoint until a save has been timed."""


class TimedSaving(Protocol):
    """What is asked of the trainer (`TreeTrainer`)."""

    saving_seconds: float | None
    """Duration of the last checkpoint save; None before the first."""


class StopOnSignal(TrainerCallback):
    """Handles signals inside `listening()`. `trainer` is set once it exists."""

    def __init__(self, settings: TrainConfig) -> None:
        self.grace: dict[int, float] = {
            signal.SIGTERM: settings.grace_seconds,
            signal.SIGHUP: settings.grace_seconds,
            signal.SIGUSR1: settings.usr1_grace_seconds,
        }
        self.trainer: TimedSaving | None = None
        self.received: int | None = None
        self._changing = False
        self._began: float | None = None
        self._steps: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._previous_handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Install the handlers for this block, if in the main thread; ignored signals stay ignored."""
        if threading.current_thread() is threading.main_thread():
            for number in (*self.grace, int(signal.SIGINT)):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._previous_handlers[number] = signal.signal(number, self._note)
            self._previous_handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._out_of_time)
        try:
            yield
        finally:
            if self._previous_handlers:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in self._previous_handlers.items():
                signal.signal(number, handler)
            self._previous_handlers = {}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and not self._changing:
            raise KeyboardInterrupt
        self.received = number
        if not self._changing:
            self._finish_or_leave(self.grace[number])

    def _finish_or_leave(self, grace: float) -> None:
        """Abort the step unless it is expected to end and be saved within `grace` seconds; else set an alarm."""
        saving = self.trainer.saving_seconds if self.trainer is not None else None
        budget = grace - (UNKNOWN_SAVING * grace if saving is None else 2 * saving)
        if self._began is None or not self._steps or budget <= 0:
            raise AbortStep
        remaining = max(self._steps) - (time.perf_counter() - self._began)
        if remaining > budget:
            log.warning(
                "the step under way needs about %.0f s more than the grace period has: it is given up", remaining
            )
            raise AbortStep
        signal.setitimer(signal.ITIMER_REAL, budget)

    def _out_of_time(self, _number: int, _frame: FrameType | None) -> None:
        if self.received is not None and not self._changing:
            raise AbortStep

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """A block outside of any step, so that a signal may end it at once."""
        self._changing, self._began = False, None
        try:
            yield
        finally:
            self._began = time.perf_counter()

    @contextmanager
    def to_the_end(self) -> Iterator[None]:
        """A block that signals do not interrupt: saving the last checkpoint."""
        self._changing = True
        try:
            yield
        finally:
            self._changing = False

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """The previous step is complete: weights, record and, if due, checkpoint.

        A signal that arrived after `on_step_end` of that step is handled here.
        """
        self._changing = False
        self._began = time.perf_counter()
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            self._finish_or_leave(self.grace[self.received])

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """From here until the next step, weights and records are inconsistent: do not abort."""
        self._changing = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """After a signal, make the trainer save and stop."""
        if self._began is not None:
            self._steps.append(time.perf_counter() - self._began)
        if self.received is not None:
            log.warning("received %s: saving a checkpoint and stopping", self.name)
            control.should_save = control.should_training_stop = True

    @property
    def name(self) -> str:
        """The name of the received signal."""
        return signal.Signals(self.received).name if self.received is not None else "no signal"
