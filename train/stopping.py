"""Ending a run on a signal so that it can go on exactly where it was.

SIGTERM and SIGUSR1, what a cluster sends before it takes the node, leave a grace period. A step that will end in time
is finished; one that will not is given up at once, or when the time has run out against expectation, and the last
finished step is what the checkpoint holds. Ctrl-C gives the step up at once. Between the first changed weight of a
step and its record nothing is given up: the step is then whole within moments.
"""

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from ..configs.schema import TrainConfig
from .leaving import LeaveNow

log = logging.getLogger(__name__)

REMEMBERED_STEPS = 5
"""The longest of so many steps is what the step under way is expected to take."""
UNKNOWN_SAVING = 1 / 3
"""Share of the grace period that is kept for the checkpoint before one has been timed."""


class StopOnSignal(TrainerCallback):
    """Listens to the signals. `trainer` is set once it exists; `listening` is the block in which signals count."""

    def __init__(self, settings: TrainConfig) -> None:
        self.grace: dict[int, float] = {
            signal.SIGTERM: settings.grace_seconds,
            signal.SIGUSR1: settings.usr1_grace_seconds,
        }
        self.trainer: Any = None
        self.received: int | None = None
        self._changing = False
        self._began: float | None = None
        self._steps: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._before: dict[int, Any] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the block runs; only the main thread of a process can. An ignored signal stays ignored."""
        if threading.current_thread() is threading.main_thread():
            for number in (*self.grace, int(signal.SIGINT)):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._out_of_time)
        try:
            yield
        finally:
            if self._before:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = {}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and not self._changing:
            raise KeyboardInterrupt
        self.received = number
        if not self._changing:
            self._finish_or_leave(self.grace[number])

    def _finish_or_leave(self, grace: float) -> None:
        """Give the step up where it is not expected to end, and be saved, within `grace` seconds; else set an alarm."""
        saving = getattr(self.trainer, "saving_seconds", None)
        room = grace - (UNKNOWN_SAVING * grace if saving is None else 2 * saving)
        if self._began is None or not self._steps or room <= 0:
            raise LeaveNow
        left = max(self._steps) - (time.perf_counter() - self._began)
        if left > room:
            log.warning("the step under way needs about %.0f s more than the grace period has: it is given up", left)
            raise LeaveNow
        signal.setitimer(signal.ITIMER_REAL, room)

    def _out_of_time(self, _number: int, _frame: FrameType | None) -> None:
        if self.received is not None and not self._changing:
            raise LeaveNow

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """A block in which every step is whole, so that a signal ends it at once."""
        self._changing, self._began = False, None
        try:
            yield
        finally:
            self._began = time.perf_counter()

    @contextmanager
    def to_the_end(self) -> Iterator[None]:
        """A block that no signal cuts short: the checkpoint of a run that is ending."""
        self._changing = True
        try:
            yield
        finally:
            self._changing = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The step before is whole: weights, record and, where one was due, checkpoint.

        A signal that came while it was written, after `on_step_end` had looked, meets the new step at its beginning.
        """
        self._changing = False
        self._began = time.perf_counter()
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            self._finish_or_leave(self.grace[self.received])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """From here on the weights are those of neither step."""
        self._changing = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Ask the trainer to save and stop."""
        if self._began is not None:
            self._steps.append(time.perf_counter() - self._began)
        if self.received is not None:
            log.warning("received %s: saving a checkpoint and stopping", self.name)
            control.should_save = control.should_training_stop = True
        return control

    @property
    def name(self) -> str:
        """The signal that was received, as text."""
        return signal.Signals(self.received).name if self.received is not None else "no signal"
