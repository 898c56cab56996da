"""Several worker processes behind one port: the kernel deals out connections, a dead worker is replaced.

Each worker binds the port for itself (SO_REUSEPORT), opens the index memory-mapped, so that its pages are shared, and
has caches of its own. They write their figures into one folder, so that `GET /metrics` of any answers for all.
"""

import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

from ... import errors
from ...configs.schema import EnvironmentConfig
from ...errors import EnvironmentUnavailableError, QuerylectError
from ...logs import set_up_logging
from .parent import die_with

log = logging.getLogger(__name__)

STOP_SECONDS = 8.0
"""How long workers may take to end besides the time to drain; then they are killed."""
RESTART_SECONDS = 1.0
"""Shortest pause before a dead worker is restarted, so that immediate crashes do not cause a restart storm."""
_SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def serve_workers(config: EnvironmentConfig, token: str | None, port: int, started: Callable[[], object]) -> None:
    """Run `config.workers` processes on a port that is bound already, until SIGTERM or SIGINT.

    `started` is called once all of them take requests. Raises what a worker raised while it opened the environment.
    """
    settings = config.model_copy(update={"port": port, "workers": 1})
    with _shared_folder():
        pool = _WorkerPool(settings, token, config.workers)
        with _stopped_by_signals(pool):
            try:
                pool.start()
                if not pool.stopping:
                    started()
                pool.watch()
            finally:
                pool.stop(config.drain_seconds + STOP_SECONDS)


class _Worker:
    def __init__(self, config: EnvironmentConfig, token: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.report, writing = context.Pipe(duplex=False)
        level = logging.getLogger(__package__.partition(".")[0]).getEffectiveLevel()
        self.process = context.Process(
            target=_work, args=(config, token, writing, os.getpid(), level), name="querylect-worker", daemon=True
        )
        self.process.start()
        writing.close()

    def outcome(self) -> QuerylectError | None:
        """None once it takes requests; the error that kept it from doing so."""
        try:
            kind, message = self.report.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            return EnvironmentUnavailableError(f"a worker ended (exit code {code}) before it was ready; see its log.")
        error_class = getattr(errors, kind, EnvironmentUnavailableError) if kind else None
        return error_class(message) if error_class else None


class _WorkerPool:
    def __init__(self, config: EnvironmentConfig, token: str | None, size: int) -> None:
        self._config, self._token, self._size = config, token, size
        self._workers: list[_Worker] = []
        self.stopping = False

    def start(self) -> None:
        """Start all workers and wait until they take requests."""
        self._workers = [_Worker(self._config, self._token) for _ in range(self._size)]
        for worker in self._workers:
            if (error := worker.outcome()) is not None and not self.stopping:
                raise error

    def watch(self) -> None:
        """Replace workers that die, until told to stop."""
        while not self.stopping:
            ended = wait([worker.process.sentinel for worker in self._workers], timeout=0.5)
            if self.stopping:
                return
            for i, worker in enumerate(self._workers):
                if worker.process.sentinel in ended:
                    worker.process.join()
                    log.error(
                        "worker %s ended (code %s); starting another", worker.process.pid, worker.process.exitcode
                    )
                    _drop_gauges(worker.process.pid)
                    time.sleep(RESTART_SECONDS)
                    self._workers[i] = _Worker(self._config, self._token)

    def ask_to_stop(self) -> None:
        """Let every worker drain; called from a signal handler."""
        self.stopping = True
        for worker in self._workers:
            if worker.process.is_alive():
                worker.process.terminate()

    def stop(self, seconds: float) -> None:
        """End all workers, politely and then by force."""
        self.ask_to_stop()
        deadline = time.monotonic() + seconds
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                log.warning("worker %s did not end in %g s and is killed", worker.process.pid, seconds)
                worker.process.kill()
                worker.process.join()


def _work(config: EnvironmentConfig, token: str | None, report: Connection, parent: int, level: int) -> None:
    from .process import bound, run

    die_with(parent)
    set_up_logging()
    logging.getLogger(__package__.partition(".")[0]).setLevel(level)

    def tell(kind: str, message: str) -> None:
        report.send((kind, message))
        report.close()

    try:
        with bound(config.host, config.port, shared=True) as listener:
            run(config, token, listener, lambda: tell("", ""))
    except QuerylectError as error:
        tell(type(error).__name__, str(error))
        sys.exit(error.exit_code)


@contextmanager
def _shared_folder() -> Iterator[None]:
    """A folder for the metrics of all workers, named in an environment variable that they inherit."""
    folder = tempfile.mkdtemp(prefix="querylect-figures-")
    previous = os.environ.get(_SHARED_FOLDER)
    os.environ[_SHARED_FOLDER] = folder
    try:
        yield
    finally:
        if previous is None:
            del os.environ[_SHARED_FOLDER]
        else:
            os.environ[_SHARED_FOLDER] = previous
        shutil.rmtree(folder, ignore_errors=True)


def _drop_gauges(pid: int | None) -> None:
    """Remove a dead worker's gauges from the metrics."""
    from prometheus_client.multiprocess import mark_process_dead

    if pid is not None:
        mark_process_dead(pid, os.environ[_SHARED_FOLDER])


@contextmanager
def _stopped_by_signals(pool: _WorkerPool) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> Any:
        log.info("stopped by signal %d", number)
        pool.ask_to_stop()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
