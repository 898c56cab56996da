"""Serves an environment in one process, or in several that uvicorn supervises and that share a listening socket.

Each worker opens the index memory-mapped, so that its pages are shared, and has caches of its own. On SIGTERM or SIGINT
the port closes and requests in flight are finished.
"""

import gc
import logging
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from ...configs.schema import EnvironmentConfig
from ...errors import EnvironmentUnavailableError, QuerylectError, UserError
from ...logs import set_up_logging
from ..environment import Environment
from ..plan import SearchPlan
from .app import create_app
from .metrics import SHARED_FOLDER
from .middleware import is_loopback

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 30
"""How long a connection without a request stays open; longer than clients keep theirs, so that they close first."""
STALLED_SECONDS = 60
"""How long a client may take none of an answer that waits for it; then its connection, and the answer, are let go."""
SHUTDOWN_SECONDS = 5
"""How long requests in flight may take once the port is closed."""


def serve(
    config: EnvironmentConfig,
    token: str | None = None,
    ready: Callable[[str], object] = lambda url: None,
    extend: Callable[[FastAPI], object] | None = None,
) -> None:
    """Open the environment and serve it until SIGTERM or SIGINT, then finish what is under way and return.

    `ready` gets the URL once requests are taken; `extend` is as in `create_app`. Several workers need the
    main thread. Raises UserError where the port is in use, the host is not one of this machine, or a host other than
    loopback is asked for without a token, and what `Environment.open` raises.
    """
    if not token and not is_loopback(config.host):
        raise UserError(
            f"host {config.host!r} is reachable from other machines and no token is set. Set the environment variable "
            "QUERYLECT_TOKEN to a secret, or serve on 127.0.0.1."
        )
    if extend is not None and config.workers > 1:
        message = f"env.workers is {config.workers}; a rewriter is held by one. Set it to 1."
        raise UserError(message)
    with bound(config.host, config.port) as listener:
        started = partial(ready, url_of(config.host, listener.getsockname()[1]))
        if config.workers == 1:
            app = open_app(config, token, extend)
            Server(uvicorn_config(app), started).run(sockets=[listener])
            return
        with tempfile.TemporaryDirectory(prefix="querylect-figures-", ignore_cleanup_errors=True) as figures:
            os.environ[SHARED_FOLDER] = figures  # which workers inherit
            try:
                workers = uvicorn_config(partial(_open_worker, config, token), factory=True, workers=config.workers)
                _Workers(workers, [listener], started).run()
            finally:
                del os.environ[SHARED_FOLDER]


def open_app(
    config: EnvironmentConfig,
    token: str | None,
    extend: Callable[[FastAPI], object] | None = None,
) -> FastAPI:
    """The app of an environment that is opened here and has answered a first search."""
    environment = Environment.open(config)
    environment.search([SearchPlan.of("warm up")])
    app = create_app(environment, token, extend)
    gc.freeze()  # what is open now stays open: the collector need not walk it again
    return app


def uvicorn_config(app: Callable[..., object], **more: object) -> uvicorn.Config:
    """How uvicorn runs the app of a service."""
    return uvicorn.Config(
        app,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        **more,  # type: ignore[arg-type]
    )


class Server(uvicorn.Server):
    """uvicorn's server, which reports when it takes requests and returns after a signal."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], object]) -> None:
        super().__init__(config)
        self._report_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report."""
        await super().startup(sockets)
        self._report_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End; at the second signal without waiting for requests. uvicorn's own would raise the signal again."""
        self.force_exit, self.should_exit = self.should_exit, True


class _Workers(Multiprocess):
    """uvicorn's supervisor, which reports when all workers take requests."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], started: Callable[[], object]) -> None:
        super().__init__(config, sockets)
        self._report_started: Callable[[], object] | None = started

    def keep_subprocess_alive(self) -> None:
        """Replace dead workers. Raises EnvironmentUnavailableError where one could not open the environment.

        uvicorn's own would also ask each worker whether it is alive, and wait for one that dies while it is asked.
        """
        for index, process in enumerate(self.processes):
            if process.exitcode == STARTUP_FAILURE:
                self.terminate_all()
                raise EnvironmentUnavailableError("a worker could not open the environment; its log says why.")
            if process.exitcode is not None and not self.should_exit.is_set():
                log.error("worker %s ended (exit code %s); starting another", process.pid, process.exitcode)
                self.processes[index] = Process(self.config, self.sockets)
                self.processes[index].start()
        if self._report_started is not None and all(process.is_ready() for process in self.processes):
            self._report_started()
            self._report_started = None


def _open_worker(config: EnvironmentConfig, token: str | None) -> FastAPI:
    """The app of a worker process, which never outlives its parent."""
    _end_with_parent()
    set_up_logging()
    try:
        return open_app(config, token)
    except QuerylectError as error:
        log.error("%s: %s", error.label, error)
        sys.exit(STARTUP_FAILURE)


def _end_with_parent() -> None:
    """End this process, one of `multiprocessing`, as soon as its parent is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to the address, to be closed by the caller (`with`). It does not listen yet: until it does,
    connections are refused, not kept.

    Raises UserError where the port is in use or the host is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":  # connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * STALLED_SECONDS)
        listener.bind(address)
        return listener
    except OSError as error:
        raise UserError(
            f"cannot serve on host {host!r}, port {port}: {error.strerror or error}. Set env.host to a name or address "
            "of this machine, and env.port to a free port that this user may take (0 takes one)."
        ) from error


def url_of(host: str, port: int) -> str:
    """The URL of a service on this machine."""
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
