"""Stop a run on a signal such that it can resume exactly.

SIGTERM and SIGUSR1, which clusters send before they reclaim a node, and SIGHUP, which a lost terminal sends, leave a
grace period. A step that does not end in it is aborted, and the checkpoint holds the last finished step. Ctrl-C aborts
the step at once. Between the optimizer step and the record of a step nothing is aborted, because the step completes
within moments.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .abort import AbortStep

log = logging.getLogger(__name__)

GRACE_SECONDS: dict[int, float] = {signal.SIGTERM: 15.0, signal.SIGHUP: 15.0, signal.SIGUSR1: 480.0}
"""How long the step under way may still take after a signal. Slurm and Kubernetes kill 30 s after SIGTERM, and Slurm
sends SIGUSR1 ten minutes before the time limit (--signal=USR1@600); the rest is for the checkpoint."""


class StopOnSignal(TrainerCallback):
    """Handles signals inside `listening()`."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._changing = False
        self._in_step = False
        self._previous_handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Install the handlers for this block, if in the main thread; ignored signals stay ignored."""
        if threading.current_thread() is threading.main_thread():
            for number in (*GRACE_SECONDS, int(signal.SIGINT)):
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
            self._finish_or_leave(number)

    def _finish_or_leave(self, number: int) -> None:
        """Outside of a step, abort at once; else give the step the grace period of the signal."""
        if not self._in_step:
            raise AbortStep
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS[number])

    def _out_of_time(self, _number: int, _frame: FrameType | None) -> None:
        if self.received is not None and not self._changing:
            raise AbortStep

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """A block outside of any step, so that a signal may end it at once."""
        self._changing = self._in_step = False
        try:
            yield
        finally:
            self._in_step = True

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
        self._changing, self._in_step = False, True
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            self._finish_or_leave(self.received)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """From here until the next step, weights and records are inconsistent: do not abort."""
        self._changing = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """After a signal, make the trainer save and stop."""
        if self.received is not None:
            log.warning("received %s: saving a checkpoint and stopping", self.name)
            control.should_save = control.should_training_stop = True

    @property
    def name(self) -> str:
        """The name of the received signal."""
        return signal.Signals(self.received).name if self.received is not None else "no signal"
