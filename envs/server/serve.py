"""Serves an environment in one process, or in several that share the port under uvicorn's supervisor.

Each worker opens the index memory-mapped, so that its pages are shared, and has caches of its own. A worker that dies
is replaced. One that cannot start ends the service with the error that it met: it would fail in the same way again.
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors.multiprocess import SIGNALS, Multiprocess

from ...configs.schema import EnvironmentConfig
from ...errors import EnvironmentUnavailableError, QuerylectError, UserError
from ...logs import set_up_logging
from ..page.router import Writer
from .metrics import SHARED_FOLDER, forget_process
from .process import Server, bound, is_loopback, open_app, server_config, url_of

log = logging.getLogger(__name__)

STOP_SECONDS = 8.0
"""How long workers may take to end besides the time to drain; then they are killed."""
HEALTH_SECONDS = 20
"""How long an open worker may leave uvicorn's health check unanswered; then it is replaced."""


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
            "named by client.token_env (QUERYLECT_TOKEN) to a secret, or serve on 127.0.0.1.",
            code="missing-token",
        )
    if (writer or extend) is not None and config.workers > 1:
        message = f"env.workers is {config.workers}; a rewriter is held by one. Set it to 1."
        raise UserError(message, code="too-many-workers")
    with bound(config.host, config.port) as listener:
        started = partial(ready, url_of(config.host, listener.getsockname()[1]))
        if config.workers == 1:
            app = open_app(config, token, writer, extend)
            Server(server_config(app, config.read_seconds), started).run(sockets=[listener])
        else:
            _serve_workers(config, token, listener, started)


def _serve_workers(
    config: EnvironmentConfig, token: str | None, listener: socket.socket, started: Callable[[], object]
) -> None:
    reports, report = multiprocessing.get_context("spawn").Pipe(duplex=False)
    level = logging.getLogger(__package__.partition(".")[0]).getEffectiveLevel()
    app = partial(_worker_app, config, token, report, level)
    settings = server_config(app, config.read_seconds, config.workers)
    settings.timeout_worker_healthcheck = HEALTH_SECONDS
    with _signals_restored(), _figures_folder():
        pool = WorkerPool(settings, listener, reports, started, config.drain_seconds + STOP_SECONDS)
        try:
            pool.run()
        except BaseException:
            pool.terminate_all()
            pool.join_all()
            raise
    if pool.error is not None:
        raise pool.error


class WorkerPool(Multiprocess):
    """uvicorn's supervisor that reports when all workers take requests, and ends where one cannot start."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        reports: Connection,
        started: Callable[[], object],
        stop_seconds: float,
    ) -> None:
        """Each worker writes its process id into `reports` once it is open, with an error where it cannot be."""
        super().__init__(config, [listener])
        self.error: QuerylectError | None = None
        self._listener, self._reports, self._stop_seconds = listener, reports, stop_seconds
        self._report_started: Callable[[], object] | None = started
        self._open: set[int | None] = set()

    def keep_subprocess_alive(self) -> None:
        """Replace workers that died or hang; end all where one ended before it was open."""
        if self.should_exit.is_set():
            return
        ended = [process for process in self.processes if process.exitcode is not None]
        while self._reports.poll():
            pid, error = self._reports.recv()
            self._open.add(pid)
            self.error = self.error or error
        for process in ended:
            if process.pid not in self._open:
                self.error = self.error or EnvironmentUnavailableError(
                    f"a worker ended (exit code {process.exitcode}) before it was ready; see its log.",
                    code="startup-failed",
                )
        if self.error is not None:
            self.should_exit.set()
        elif self._open.issuperset(process.pid for process in self.processes):
            if self._report_started is not None:
                self._listener.listen(self.config.backlog)  # some worker may be about to
                self._report_started()
                self._report_started = None
            for process in ended:
                log.error("worker %s ended (code %s); starting another", process.pid, process.exitcode)
                forget_process(process.pid)
            super().keep_subprocess_alive()

    def join_all(self) -> None:
        """Wait for all workers; a second signal reaches them too, and those that take too long are killed."""
        deadline = time.monotonic() + self._stop_seconds
        while any(process.exitcode is None for process in self.processes) and time.monotonic() < deadline:
            time.sleep(0.05)
            if self.signal_queue:
                self.signal_queue.clear()
                self.terminate_all()
        for process in self.processes:
            if process.exitcode is None:
                log.warning("worker %s did not end in %g s and is killed", process.pid, self._stop_seconds)
                process.kill()
        super().join_all()

    def handle_hup(self) -> None:
        """End, as a single process does when its terminal is closed."""
        self.should_exit.set()


def _worker_app(config: EnvironmentConfig, token: str | None, report: Connection, level: int) -> FastAPI:
    """The app of a worker process, which never outlives its parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_up_logging()
    logging.getLogger(__package__.partition(".")[0]).setLevel(level)
    try:
        app = open_app(config, token)
    except QuerylectError as error:
        report.send((os.getpid(), error))
        sys.exit(error.exit_code)
    report.send((os.getpid(), None))
    return app


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _signals_restored() -> Iterator[None]:
    """uvicorn's supervisor leaves its signal handlers behind."""
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _figures_folder() -> Iterator[None]:
    """A folder for the metrics of all workers, named in an environment variable that they inherit."""
    with tempfile.TemporaryDirectory(prefix="querylect-figures-", ignore_cleanup_errors=True) as folder:
        os.environ[SHARED_FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[SHARED_FOLDER]
