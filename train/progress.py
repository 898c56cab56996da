"""The progress of a run on stderr: a line of the log per step, and below the lines a bar in a terminal."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..logs import progress_bar
from .metrics import turns_of

log = logging.getLogger(__name__)


class ProgressCallback(TrainerCallback):
    """Shows every step and validation; `close` ends the bar."""

    def __init__(self, title: str) -> None:
        self._title, self._bar = title, ExitStack()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Draw the bar."""
        self._advance = self._bar.enter_context(progress_bar(self._title))
        self._advance(state.global_step, state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **_: object,
    ) -> None:
        """Log the reward per turn of a step or a validation."""
        for name, label in (("reward", "step"), ("eval_reward", "validation at step")):
            rewards = [f"turn {turn} reward {(logs or {})[key]:.3f}" for turn, key in turns_of(logs or {}, name)]
            if rewards:
                seconds = f"  {logs['seconds/step']:.1f} s" if logs and "seconds/step" in logs else ""
                log.info("%s %d/%d  %s%s", label, state.global_step, state.max_steps, "  ".join(rewards), seconds)
                self._advance(state.global_step, state.max_steps)

    def close(self) -> None:
        """End the bar."""
        self._bar.close()
