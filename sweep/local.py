"""Runs a sweep here: every run by a process of its own, one after another, as `querylect train` and `querylect eval`.

So a run that fails, or that is killed for its memory, ends no other one, and each begins with an empty GPU.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from ..configs.load import dump_config
from ..errors import StoppedError
from ..storage import only_command, write_text
from .runs import SweepPlan

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Those on which a run saves its last step and ends."""


def run_sweep(plan: SweepPlan, evaluate: bool, report: Callable[[str], None]) -> dict[str, int]:
    """Do what is left of each run; `report` gets a line for each command.

    A run that fails is passed over; returns the exit codes of those. Raises StoppedError or KeyboardInterrupt if a
    signal ended a run, StorageError if another command is at work in the folder.
    """
    failed: dict[str, int] = {}
    with only_command(plan.folder):
        for number, run in enumerate(plan.runs, start=1):
            write_text(run.config_file, dump_config(run.config))
            for command in run.commands(evaluate):
                report(f"[{number}/{len(plan.runs)}] {run.name}: {shlex.join(['querylect', *command])}")
                if code := run_process(command, {"WANDB_RUN_GROUP": plan.name}):
                    failed[run.name] = code
                    break
    return failed


def run_process(arguments: Sequence[str], variables: Mapping[str, str]) -> int:
    """The exit code of `querylect ARGUMENTS`, negative if a signal killed it; its output goes to stderr.

    `variables` are added to its environment, unless they are set already. It is in a session of its own, and SIGNALS
    are handed on to it, so that it gets Ctrl-C once, whoever was sent it. Raises KeyboardInterrupt or StoppedError once
    it has ended after one.
    """
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []
    early: list[int] = []

    def hand_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    caught = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, hand_on) for number in caught}
    try:
        command = [sys.executable, "-P", "-m", "querylect", *arguments]
        process = subprocess.Popen(command, stdout=2, start_new_session=True, env={**variables, **os.environ})
        for number in early:
            process.send_signal(number)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    if received or code == StoppedError.exit_code:
        message = "a signal ended the run; its last finished step is saved. Give the same command again to go on."
        raise StoppedError(message)
    return code
