"""A `querylect` command as a process of its own that says when it enters each phase, for attack_world.py.

Functions of the package are wrapped in the forked child alone; what they do is not changed. A phase lasts from its mark
to the next one.
"""

import functools
import importlib
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path

IMPORTED = ["deepspeed", "querylect.cli", "querylect.train.run", "querylect.train.trainer",
            "querylect.train.validation", "querylect.train.warm_start", "querylect.rollouts.engines.transformers",
            "querylect.eval.run", "querylect.export.export", "querylect.envs.builder.build",
            "querylect.tests.frozen"]  # fmt: skip
"""Accelerate imports DeepSpeed in every run where it is installed; elsewhere the fork server goes on without it."""
PHASES = {
    "index parts": ("querylect.envs.builder.build", "_write_parts"),
    "index merge": ("querylect.envs.builder.build", "_merge"),
    "warm start": ("querylect.train.run", "_warm_start"),
    "rollout": ("querylect.rollouts.grow", "Grower.grow"),
    "update": ("querylect.train.trainer", "TreeTrainer._compute_loss"),
    "checkpoint": ("querylect.train.trainer", "TreeTrainer._save_checkpoint"),
    "validation": ("querylect.train.validation", "Validator._validate"),
    "eval": ("querylect.eval.evaluation", "Evaluation.answer"),
    "export": ("querylect.export.export", "export_to_folder"),
}
"""The function that each phase begins with, by module and name."""
CHILD = "_attack_child"
LASTING = {"update"}
"""Phases that go on after their function has returned: the backward pass and the optimizer step come after the loss."""


class Child:
    """`querylect ARGUMENTS` from `folder`, forked from a process that has imported it."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, limit: int | None = None, patience: float = 240.0
    ) -> None:
        """`limit`: bytes that no file of it may exceed, as on a full disk. `patience`: seconds that it may take."""
        self._patience = patience
        folder.mkdir(parents=True, exist_ok=True)
        self.stdout, self.stderr, self._marks = folder / "stdout", folder / "stderr", folder / "marks"
        self._marks.unlink(missing_ok=True)
        context = get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        job = {"arguments": [*map(str, arguments)], "folder": str(folder), "limit": limit, "environ": {**os.environ}}
        self._process = context.Process(target=runpy.run_path, args=(__file__, {"job": job}, CHILD))
        self.started = time.time()
        self._process.start()

    def send(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self._process.exitcode is None and self._process.pid:
            os.kill(self._process.pid, number)

    def alive(self) -> bool:
        return self._process.exitcode is None

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code, negative where a signal ended it; None where it had to be killed after `seconds`."""
        self._process.join(self._patience if seconds is None else seconds)
        if self._process.exitcode is None:
            self.send(signal.SIGKILL)
            self._process.join()
            return None
        return self._process.exitcode

    def marks(self) -> list[tuple[float, str]]:
        """The times at which phases began."""
        lines = self._marks.read_text().splitlines() if self._marks.exists() else []
        return [(float(line.split(" ", 1)[0]), line.split(" ", 1)[1]) for line in lines if " " in line]

    def wait_for_mark(self, phase: str, number: int) -> bool:
        """Wait until a phase begins for the `number`-th time (from 1); False where the process ends before."""
        until = time.time() + self._patience
        while time.time() < until:
            if sum(name == phase for _, name in self.marks()) >= number:
                return True
            if not self.alive():
                return False
            time.sleep(0.002)
        return False

    def error(self) -> str:
        """What it wrote to stderr."""
        return self.stderr.read_text(errors="replace") if self.stderr.exists() else ""


def _run(job: dict) -> None:
    """In the child: redirect, wrap, limit, and run the command line."""
    folder = Path(job["folder"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(job["environ"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["querylect", *job["arguments"]]
    import torch
    from querylect.cli import main

    torch.set_num_threads(1)
    marks = os.open(folder / "marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    inside: list[str] = []
    for phase, (module, name) in PHASES.items():
        _wrap(phase, importlib.import_module(module), name, marks, inside)
    if job["limit"] is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
    main(job["arguments"])


def _wrap(phase: str, owner: object, name: str, marks: int, inside: list[str]) -> None:
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original: Callable = getattr(owner, last)

    @functools.wraps(original)
    def marked(*args: object, **kwargs: object) -> object:
        if inside:
            return original(*args, **kwargs)
        os.write(marks, f"{time.time():.6f} {phase}\n".encode())
        inside.append(phase)
        try:
            return original(*args, **kwargs)
        finally:
            inside.pop()
            if phase not in LASTING:
                os.write(marks, f"{time.time():.6f} -\n".encode())

    setattr(owner, last, marked)


if __name__ == CHILD:
    _run(globals()["job"])
