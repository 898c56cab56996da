"""Serves an environment in one process, or in several that uvicorn supervises and that share a listening socket.

Each worker opens the index memory-mapped, so that its pages are shared, and has caches of its own. On SIGTERM or SIGINT
the port closes and requests in flight are finished.
"""

import gc
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess

from ...configs.schema import EnvironmentConfig
from ...errors import EnvironmentUnavailableError, QuerylectError, UserError
from ...logs import set_up_logging
from ..environment import Environment
from ..plan import SearchPlan
from .app import Extend, create_app
from .limits import is_loopback
from .metrics import SHARED_FOLDER

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 30
"""How long a connection without a request stays open; longer than clients keep theirs, so that they close first."""
SHUTDOWN_SECONDS = 5
"""How long requests in flight may take once the port is closed."""


def serve(
    config: EnvironmentConfig,
    token: str | None = None,
    ready: Callable[[str], object] = lambda url: None,
    extend: Extend | None = None,
) -> None:
    """Open the environment and serve it until SIGTERM or SIGINT, then finish what is under way and return.

    `ready` gets the URL once requests are taken; `extend` is as in `create_app`. Several workers need the main thread.
    Raises UserError where a host other than loopback is asked for without a token, what `Environment.open` raises, and
    SystemExit where uvicorn cannot take the port.
    """
    if not token and not is_loopback(config.host):
        raise UserError(
            f"host {config.host!r} is reachable from other machines and no token is set. Set the environment variable "
            "QUERYLECT_TOKEN to a secret, or serve on 127.0.0.1."
        )
    if extend is not None and config.workers > 1:
        message = f"env.workers is {config.workers}; a rewriter is held by one. Set it to 1."
        raise UserError(message)
    open_here = partial(open_app, config, token, extend)
    settings = uvicorn.Config(
        open_here if config.workers == 1 else partial(_open_worker, open_here, os.getpid()),
        config.host,
        config.port,
        factory=True,
        workers=config.workers,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    with settings.bind_socket() as listener:  # it listens once the environment is open
        report = partial(ready, _url(config.host, listener.getsockname()[1]))
        if config.workers == 1:
            settings.load()  # here, where a signal still ends it
            _Server(settings, report).run(sockets=[listener])
            return
        with tempfile.TemporaryDirectory(prefix="querylect-figures-", ignore_cleanup_errors=True) as figures:
            os.environ[SHARED_FOLDER] = figures  # which workers inherit
            try:
                _Workers(settings, listener, report).run()
            finally:
                del os.environ[SHARED_FOLDER]


def open_app(config: EnvironmentConfig, token: str | None, extend: Extend | None = None) -> FastAPI:
    """The app of an environment that is opened here and has answered a first search."""
    environment = Environment.open(config)
    environment.rank([SearchPlan.of("warm up")])
    app = create_app(environment, token, extend)
    gc.freeze()  # what is open now stays open: the collector need not walk it again
    return app


def end_with_parent(parent: int) -> None:
    """End this process, gracefully if there is time, as soon as its parent of that id is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SHUTDOWN_SECONDS + 3)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Server(uvicorn.Server):
    """uvicorn's server, which reports when it takes requests and returns after a signal."""

    def __init__(self, config: uvicorn.Config, report: Callable[[], object]) -> None:
        super().__init__(config)
        self._report = report

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report."""
        await super().startup(sockets)
        self._report()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End; at the second signal without waiting for requests. uvicorn's own would raise the signal again."""
        self.force_exit, self.should_exit = self.should_exit, True


class _Workers(Multiprocess):
    """uvicorn's supervisor, which reports when all workers take requests. It replaces those that die.

    `run` raises EnvironmentUnavailableError where a worker cannot open the environment.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket, report: Callable[[], object]) -> None:
        super().__init__(config, [listener])
        self._report: Callable[[], object] | None = report

    def keep_subprocess_alive(self) -> None:
        """Replace dead workers."""
        super().keep_subprocess_alive()
        if any(process.exitcode == STARTUP_FAILURE for process in self.processes):
            self.terminate_all()
            raise EnvironmentUnavailableError("a worker could not open the environment; its log says why.")
        if self._report is not None and all(process.is_ready() for process in self.processes):
            self._report()
            self._report = None


def _open_worker(open_environment: Callable[[], FastAPI], parent: int) -> FastAPI:
    """The app of a worker process."""
    end_with_parent(parent)
    set_up_logging()
    try:
        return open_environment()
    except QuerylectError as error:
        log.error("%s: %s", error.label, error)
        sys.exit(STARTUP_FAILURE)


def _url(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
