"""Runs a sweep here: every run by a process of its own, one after another, as `querylect train` and `querylect eval`.

So a run that fails, or that is killed for its memory, ends no other one, and each begins with an empty GPU.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from ..errors import IncompleteError, StoppedError
from ..storage import only_command
from .runs import SweepPlan, SweepRun, write_configs
from .table import write_table

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals on which a run saves its last step and ends."""


def run_sweep(plan: SweepPlan, evaluate: bool, report: Callable[[str], None]) -> dict[str, int]:
    """Do what is left of each run, with the table up to date after each; `report` gets a line for each command.

    A run that fails is passed over; returns the exit codes of those. Raises StoppedError or KeyboardInterrupt if a
    signal ended a run, StorageError if another command is at work in the folder.
    """
    failed: dict[str, int] = {}
    with only_command(plan.folder):
        write_configs(plan.runs)
        for number, run in enumerate(plan.runs, start=1):
            commands = commands_of(run, evaluate)
            if not commands:
                report(f"[{number}/{len(plan.runs)}] {run.name}: finished before")
            for command in commands:
                report(f"[{number}/{len(plan.runs)}] {run.name}: {shlex.join(['querylect', *command])}")
                if code := run_process(command, {"WANDB_RUN_GROUP": plan.name}):
                    failed[run.name] = code
                    break
            write_table(plan, failed)
    return failed


def refuse_failed(plan: SweepPlan, failed: Mapping[str, int]) -> None:
    """Raise IncompleteError if runs have failed."""
    if failed:
        names = ", ".join(f"{name} (exit code {code})" for name, code in failed.items())
        raise IncompleteError(
            f"{len(failed)} of {len(plan.runs)} runs failed: {names}. Each has said above why. Give the same command "
            "again to go on with these."
        )


def commands_of(run: SweepRun, evaluate: bool) -> list[list[str]]:
    """What is left to do for a run, as arguments of `querylect`."""
    commands = []
    if not run.is_trained:
        commands.append(["train", str(run.config_file), *(["--resume"] if run.is_started else [])])
    if evaluate and not run.is_evaluated:
        commands.append(["eval", str(run.folder)])
    return commands


def run_process(arguments: Sequence[str], variables: Mapping[str, str]) -> int:
    """The exit code of `querylect ARGUMENTS`, negative if a signal killed it; its output goes to stderr.

    `variables` are added to its environment, unless they are set already.

    Signals are handed on to it, and answered once it has ended: raises KeyboardInterrupt or StoppedError.
    """
    command = [sys.executable, "-P", "-m", "querylect", *arguments]
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def send(number: int) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    with _handed_on(send) as received:
        # in a session of its own, so that Ctrl-C reaches it once, from here
        process = subprocess.Popen(command, stdout=2, start_new_session=True, env={**variables, **os.environ})
        for number in early:
            process.send_signal(number)
        code = process.wait()
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    if received or code == StoppedError.exit_code:
        message = "a signal ended the run; its last finished step is saved. Give the same command again to go on."
        raise StoppedError(message)
    return code


@contextmanager
def _handed_on(send: Callable[[int], None]) -> Iterator[list[int]]:
    """Hands signals on for this block; yields those that came."""
    received: list[int] = []

    def hand_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        send(number)

    before = {number: signal.signal(number, hand_on) for number in FORWARDED}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
