"""Stop a run on a signal such that it can resume exactly: after the step under way, with a checkpoint of it.

SIGTERM and SIGUSR1, which clusters send before they reclaim a node, SIGHUP, which a lost terminal sends, and Ctrl-C set
a flag that is read after the last step on every rollout. Before the first step, and at a second Ctrl-C, the run ends at
once.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..errors import StoppedError
from .processes import Processes

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT)


class StopOnSignal(TrainerCallback):
    """Handles signals inside `listening()`; the last callback of a run that may ask for a stop or a checkpoint."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.at_signal: Callable[[], object] = lambda: None
        """Called when the first signal comes, in its handler."""
        self.stopped_by: int | None = None
        """The signal that all processes stop for, once they have met."""
        self._received: int | None = None
        self._interrupted = self._training = False
        self._stop = self._save = False
        """What is to be done after the last step on the rollout."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Install the handlers for this block, if in the main thread; ignored signals stay ignored."""
        previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        if threading.current_thread() is threading.main_thread():
            for number in map(int, SIGNALS):
                if signal.getsignal(number) != signal.SIG_IGN:
                    previous[number] = signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._interrupted or not self._training:
                raise KeyboardInterrupt
            self._interrupted = True
        if self._received is not None:
            return
        self._received = number
        self.at_signal()
        name = signal.Signals(number).name
        if not self._training:
            raise StoppedError(f"{name} came before the first step. Go on with --resume if there is a run folder.")
        log.warning("received %s: the run stops after this step", name)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._training = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **_: object,
    ) -> None:
        """After the record of a step that is the last on its rollout: all processes stop or save if one of them has to.
        Collective."""
        if not logs or "loss" not in logs:
            return
        reports = self.processes.all_gather((self._received, control.should_training_stop, control.should_save))
        received = next((number for number, _, _ in reports if number is not None), None)
        self.stopped_by = received  # one that comes during this call is reported at the next one
        self._stop |= received is not None or any(stop for _, stop, _ in reports)
        self._save |= received is not None or any(save for _, _, save in reports)
        last_step = state.global_step % getattr(args, "num_iterations", 1) == 0 or state.global_step == state.max_steps
        control.should_training_stop, control.should_save = self._stop and last_step, self._save and last_step
        if last_step:
            self._stop = self._save = False
