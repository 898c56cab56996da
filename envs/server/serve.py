"""Serves an environment in one process, or in several that share a listening socket.

Each worker opens the index memory-mapped, so that its pages are shared, and has caches of its own. One that dies or
hangs is replaced by itself, while the others serve. An error of the environment, such as a damaged index, ends the
service: every other worker would meet it too.

uvicorn's own supervisor is not used. It waits for the answer of each worker in turn, so a hanging one holds up the care
for the others; a thread of the worker answers, so an event loop that stands still goes unnoticed; a replacement starts
without a pause, and the error that kept a worker from opening is lost.
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType

from fastapi import FastAPI

from ...configs.schema import EnvironmentConfig
from ...errors import EnvironmentUnavailableError, QuerylectError, UserError
from ...logs import set_up_logging
from ..page.router import Writer
from ..parent import end_with_parent
from .metrics import SHARED_FOLDER, forget_process
from .middleware import is_loopback
from .process import Server, bound, open_app, url_of

log = logging.getLogger(__name__)

STOP_SECONDS = 8.0
"""How long workers may take to end, in addition to the drain time, before they are killed."""
HANGING_SECONDS = 20.0
"""How long the event loop of an open worker may stand still; then it is killed and replaced."""
RESTART_SECONDS = 1.0
"""Pause before a dead worker is replaced; it doubles with each replacement that ends before it is open."""
MAX_RESTART_SECONDS = 60.0
TICK_SECONDS = 0.1
"""How often workers and signals are checked."""


def serve(
    config: EnvironmentConfig,
    token: str | None = None,
    ready: Callable[[str], object] = lambda url: None,
    writer: Writer | None = None,
    extend: Callable[[FastAPI], object] | None = None,
) -> None:
    """Open the environment and serve it until SIGTERM or SIGINT, then finish what is under way and return.

    `ready` gets the URL once requests are taken; `writer` and `extend` are as in `create_app`. Several workers need the
    main thread. Raises UserError where the port is in use, the host is not one of this machine, or a host other than
    loopback is asked for without a token, and what `Environment.open` raises.
    """
    if not token and not is_loopback(config.host):
        raise UserError(
            f"host {config.host!r} is reachable from other machines and no token is set. Set the environment variable "
            "named by client.token_env (QUERYLECT_TOKEN) to a secret, or serve on 127.0.0.1."
        )
    if (writer or extend) is not None and config.workers > 1:
        message = f"env.workers is {config.workers}; a rewriter is held by one. Set it to 1."
        raise UserError(message)
    with bound(config.host, config.port) as listener:
        started = partial(ready, url_of(config.host, listener.getsockname()[1]))
        if config.workers == 1:
            Server(open_app(config, token, writer, extend), config, started).run(sockets=[listener])
        else:
            _serve_workers(config, token, listener, started)


def _serve_workers(
    config: EnvironmentConfig, token: str | None, listener: socket.socket, started: Callable[[], object]
) -> None:
    with _figures_folder(), _counted_signals() as signals:
        workers: list[_Worker] = []
        try:
            workers += [_Worker(config, token, listener) for _ in range(config.workers)]
            while not signals and not all(worker.is_open() for worker in workers):
                for worker in workers:
                    worker.check_start()
                time.sleep(TICK_SECONDS)
            if not signals:
                started()
            while not signals:
                for worker in workers:
                    worker.keep_alive()
                time.sleep(TICK_SECONDS)
        finally:
            listener.close()
            _stop(workers, signals, config.drain_seconds + STOP_SECONDS)


def _stop(workers: list["_Worker"], signals: list[int], seconds: float) -> None:
    """End all workers: each further signal reaches them too, and those that take too long are killed."""
    deadline = time.monotonic() + seconds
    sent = 0
    while any(worker.process.is_alive() for worker in workers) and time.monotonic() < deadline:
        if sent < max(1, len(signals)):
            sent += 1
            for worker in workers:
                worker.process.terminate()
        time.sleep(TICK_SECONDS)
    for worker in workers:
        if worker.process.is_alive():
            log.warning("worker %s did not end in %g s and is killed", worker.process.pid, seconds)
            worker.process.kill()
        worker.process.join()


class _Worker:
    """A worker process. It sends the error that kept it from opening, or heartbeats once it is open."""

    def __init__(self, config: EnvironmentConfig, token: str | None, listener: socket.socket) -> None:
        self._arguments = config, token, listener, logging.getLogger(__package__.partition(".")[0]).getEffectiveLevel()
        self._pause = RESTART_SECONDS
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._reports, report = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(*self._arguments, report), daemon=True)
        self.process.start()
        report.close()
        self._heartbeat: float | None = None
        self._restart_at: float | None = None

    def is_open(self) -> bool:
        """Whether it has taken requests. Raises the error that kept it from opening."""
        with suppress(EOFError):
            while self._reports.poll():
                error: QuerylectError | None = self._reports.recv()
                if error is not None:
                    raise error
                self._heartbeat = time.monotonic()
                self._pause = RESTART_SECONDS
        return self._heartbeat is not None

    def check_start(self) -> None:
        """Raises EnvironmentUnavailableError where it ended before it was open, and as `is_open`."""
        if not self.is_open() and not self.process.is_alive():
            code = self.process.exitcode
            message = f"a worker ended (exit code {code}) before it was ready; see its log."
            raise EnvironmentUnavailableError(message)

    def keep_alive(self) -> None:
        """Replace it if it has died, after a pause; kill it if it hangs. Raises as `is_open`."""
        now = time.monotonic()
        if self._restart_at is not None:
            if now >= self._restart_at:
                self._start()
        elif self.is_open() and self._heartbeat is not None and now > self._heartbeat + HANGING_SECONDS:
            log.error("worker %s has not reported for %g s and is killed", self.process.pid, HANGING_SECONDS)
            self._heartbeat = None
            self.process.kill()
        elif not self.process.is_alive():
            log.error("worker %s ended (code %s); starting another", self.process.pid, self.process.exitcode)
            forget_process(self.process.pid)
            self._restart_at = now + self._pause
            self._pause = min(2 * self._pause, MAX_RESTART_SECONDS)


def _work(
    config: EnvironmentConfig, token: str | None, listener: socket.socket, level: int, report: Connection
) -> None:
    """A worker process, which never outlives its parent."""
    os.setsid()  # Ctrl-C in a terminal reaches the parent alone, which passes it on
    end_with_parent()
    set_up_logging()
    logging.getLogger(__package__.partition(".")[0]).setLevel(level)

    async def beat() -> None:
        report.send(None)

    try:
        app = open_app(config, token)
    except QuerylectError as error:
        report.send(error)
        sys.exit(error.exit_code)
    Server(app, config, beat=beat).run(sockets=[listener])


@contextmanager
def _counted_signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT inside the block end up in the list, and nowhere else."""
    signals: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        log.info("stopped by signal %d", number)
        signals.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _figures_folder() -> Iterator[None]:
    """A folder for the metrics of all workers, named in an environment variable that they inherit."""
    previous = os.environ.get(SHARED_FOLDER)
    with tempfile.TemporaryDirectory(prefix="querylect-figures-", ignore_cleanup_errors=True) as folder:
        os.environ[SHARED_FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[SHARED_FOLDER]
            if previous is not None:
                os.environ[SHARED_FOLDER] = previous
