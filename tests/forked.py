"""Real processes that run the `querylect` command, or Python, forked from one that has imported what training imports.

A process of its own, with its own output, surroundings, signals and exit code, as `python -m querylect` is one, without
the ten seconds of a processor that each of those spends on importing PyTorch, transformers and TRL. Python's fork
server starts with the first of them and ends with the tests.
"""

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

_CHILD = "querylect_forked"
_IMPORTED = ["deepspeed", "querylect.cli", "querylect.train.trainer", "querylect.rollouts.engines.transformers",
             "querylect.envs.server.serve", "sentence_transformers", "querylect.tests.frozen"]  # fmt: skip
"""Accelerate imports DeepSpeed in every run where it is installed; elsewhere the fork server goes on without it."""


def fork_server() -> ForkServerContext:
    """What starts processes that are forked, in the place of those that multiprocessing spawns. What it imports sees
    the variables of the first call: no test may have changed them by then."""
    context = get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    forkserver.ensure_running()
    return context


class Forked:
    """`querylect ARGUMENTS`, as far as needed with the methods of subprocess.Popen."""

    def __init__(
        self,
        arguments: Sequence[str],
        stdout: Path,
        stderr: Path,
        surroundings: Mapping[str, str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        code: str | None = None,
        stdin: Path | None = None,
    ) -> None:
        """`surroundings` are set beside the variables of this process, `environment` in place of them. With `code` it
        runs that instead, as `python -c CODE ARGUMENTS` does."""
        context = fork_server()
        asked = {
            "arguments": list(arguments),
            "outputs": {1: str(stdout), 2: str(stderr)},
            "stdin": None if stdin is None else str(stdin),
            "folder": os.getcwd(),
            "environment": {**(os.environ if environment is None else environment), **(surroundings or {})},
            "code": code,
        }
        self._process = context.Process(target=runpy.run_path, args=(__file__, {"asked": asked}, _CHILD))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        """Its exit code, negative where a signal ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float) -> int:
        """Its exit code, once it has ended."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"process {self.pid} still runs after {seconds} s"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the fork server's message has yet to come
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Piped(Forked):
    """One whose `stdin`, `stdout` and `stderr` are pipes while the block runs; then it is killed."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, surroundings: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        out, err, into = pipes = [folder / name for name in ("stdout", "stderr", "stdin")]
        for pipe in pipes:
            pipe.unlink(missing_ok=True)
            os.mkfifo(pipe)
        super().__init__(arguments, out, err, surroundings, stdin=into, **more)
        self.stdout, self.stderr = out.open(encoding="utf-8"), err.open(encoding="utf-8")  # in the order of the child
        self.stdin = into.open("w", encoding="utf-8", buffering=1)

    def __enter__(self) -> "Piped":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.kill()
        self.wait(60)
        for pipe in (self.stdout, self.stderr, self.stdin):
            with suppress(BrokenPipeError):
                pipe.close()


def forked(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], code: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one to its end, with this environment alone; its exit code and what it has written."""
    folder.mkdir(exist_ok=True)
    outputs = (folder / "stdout", folder / "stderr")
    ended = Forked(arguments, *outputs, environment=environment, code=code).wait(900)
    return subprocess.CompletedProcess([*arguments], ended, *(path.read_text() for path in outputs))


def _run(asked: dict[str, Any]) -> None:
    for number, path in asked["outputs"].items():
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    if asked["stdin"] is not None:
        os.dup2(os.open(asked["stdin"], os.O_RDONLY), 0)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)  # multiprocessing closed the one before
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for module in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
        del sys.modules[module]  # it reads its folder's variable when it is imported
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup would have it ignore
    import torch
    from querylect.cli import main

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    if asked["code"] is None:
        sys.argv = ["querylect", *asked["arguments"]]
        main(asked["arguments"])
    else:
        sys.argv = ["-c", *asked["arguments"]]
        exec(asked["code"], {"__name__": "__main__"})


if __name__ == _CHILD:
    _run(globals()["asked"])
