"""The process around the service: the socket, a uvicorn that drains, and worker processes that share the port.

A signal closes the door first (`/readyz` and new work get 503), then, after `drain_seconds`, the port; what is under
way gets its answer, at the latest a 503 before the process ends.
"""

import asyncio
import errno
import gc
import ipaddress
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...configs.schema import EnvironmentConfig
from ...errors import UserError
from ..environment import Environment
from ..page.router import Writer
from ..plan import SearchPlan
from .app import ServiceState, create_app
from .middleware import ShutdownFlag

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5
"""How long requests under way may take to finish once the port is closed."""
GIVE_UP_SECONDS = 4.0
"""How long after the shutdown requests that still wait for a search are failed."""
KEEP_ALIVE_SECONDS = 30
"""How long a connection without a request stays open; longer than clients keep theirs, so that they close first."""
MAX_HEAD_BYTES = 65_536
"""Longest request line and headers that are taken."""
STALLED_SECONDS = 60.0
"""How long a client may take none of an answer that waits for it; then its connection, and the answer, are let go."""
_BIND_REMEDIES = {
    errno.EADDRINUSE: "Stop the program that has the port, or set env.port to another one (0 takes a free one).",
    errno.EADDRNOTAVAIL: "Set env.host to a name or address of this machine.",
    errno.EACCES: "Set env.port to a port that this user may take, 1024 or above (0 takes a free one).",
}


def protocol(head_seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 with limits to the head of a request: a connection is closed that takes too long to send it,
    or sends more than MAX_HEAD_BYTES."""

    class BoundedHead(HttpToolsProtocol):
        """Closes connections that never come to the end of their request's head."""

        _timer: asyncio.TimerHandle | None = None
        _head_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._timer = self.loop.call_later(head_seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            self._head_bytes += len(data)
            super().data_received(data)
            if self._timer is not None and self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"The head of a request may have {MAX_HEAD_BYTES} bytes.")

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self._stop_timer()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._head_bytes = 0
            if self.cycle.response_complete:  # no further request has arrived
                self._stop_timer()
                self._timer = self.loop.call_later(max(head_seconds, KEEP_ALIVE_SECONDS), self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return BoundedHead


class Server(uvicorn.Server):
    """uvicorn's server that reports when it takes requests, and refuses new ones before it closes its port."""

    def __init__(
        self,
        app: Any,
        *,
        door: ShutdownFlag,
        give_up: Callable[[], Awaitable[None]],
        read_seconds: float,
        drain_seconds: float,
        on_started: Callable[[], object],
    ) -> None:
        """`give_up` fails what still waits for a search."""
        settings = uvicorn.Config(
            app,
            http=protocol(read_seconds),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            ws="none",
        )
        super().__init__(settings)
        self._door = door
        self._give_up = give_up
        self._drain_seconds = drain_seconds
        self._on_started = on_started
        self._ends_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call back."""
        await super().startup(sockets)
        self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal closes the door; a second one, or `drain_seconds` 0, closes the port."""
        self._door.close()
        if self._ends_at is None and self._drain_seconds > 0:
            self._ends_at = time.monotonic() + self._drain_seconds
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether to end."""
        drained = self._ends_at is not None and time.monotonic() >= self._ends_at
        return await super().on_tick(counter) or drained

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port and let what is under way end, with a 503 where it takes too long."""
        self._door.close()
        giving_up = asyncio.create_task(self._give_up_later())
        try:
            await super().shutdown(sockets)
        finally:
            giving_up.cancel()

    async def _give_up_later(self) -> None:
        await asyncio.sleep(GIVE_UP_SECONDS)
        await self._give_up()


@contextmanager
def bound(host: str, port: int, shared: bool = False) -> Iterator[socket.socket]:
    """A socket bound to the address. It does not listen yet: until it does, connections are refused, not kept.

    `shared` lets other processes of this user bind the same port.
    """
    try:
        family, kind, protocol_, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol_)
    except OSError as error:
        raise UserError(
            f"cannot serve on host {host!r}: {error}. Give a host name or address of this machine."
        ) from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":  # connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * STALLED_SECONDS))
        try:
            listener.bind(address)
        except OSError as error:
            remedy = _BIND_REMEDIES.get(error.errno or 0, "Choose another env.host or env.port.")
            raise UserError(f"cannot serve on {host} port {port}: {error.strerror or error}. {remedy}") from error
        yield listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than localhost counts as reachable."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def url_of(host: str, port: int) -> str:
    """The URL of a service on this machine."""
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def quiet_signals() -> Iterator[None]:
    """Only log SIGINT and SIGTERM, which uvicorn raises again after its graceful shutdown."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ignore(number: int, _frame: FrameType | None) -> None:
        log.info("stopped by signal %d", number)

    previous = {number: signal.signal(number, ignore) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run(
    config: EnvironmentConfig,
    token: str | None,
    listener: socket.socket,
    started: Callable[[], object],
    writer: Writer | None = None,
    extend: Callable[[FastAPI], object] | None = None,
) -> None:
    """Open the environment and serve it on a bound socket until a signal comes."""
    environment = Environment.open(config)
    environment.search([SearchPlan.of("warm up")])
    app = create_app(environment, config, token, writer, extend)
    service: ServiceState = app.state.room
    gc.freeze()  # what is open now stays open: the collector need not walk it again
    server = Server(
        app,
        door=service.door,
        give_up=service.give_up,
        read_seconds=config.read_seconds,
        drain_seconds=config.drain_seconds,
        on_started=started,
    )
    with quiet_signals():
        server.run(sockets=[listener])
