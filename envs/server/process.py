"""One serving process: its socket, the app of an opened environment, and uvicorn with limits for slow clients.

Slow clients are cut off (`BoundedHead`, `STALLED_SECONDS`; bodies in middleware.py), and the end is graceful: the first
SIGTERM or SIGINT refuses new work, `drain_seconds` later or at the second signal the port closes, a third signal kills
the process. What still waits for a search GIVE_UP_SECONDS after the port closed is failed, so that it gets its 503
before uvicorn cuts it off.
"""

import asyncio
import gc
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import HANDLED_SIGNALS

from ...configs.schema import EnvironmentConfig
from ...errors import UserError
from ..environment import Environment
from ..page.router import Writer
from ..plan import SearchPlan
from .app import create_app
from .problems import problem
from .service import ServiceState

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 30
"""How long a connection without a request stays open; longer than clients keep theirs, so that they close first."""
MAX_HEAD_BYTES = 65_536
"""Longest request line and headers that are taken."""
_PIECE_BYTES = 4096
LINGER_SECONDS = 2.0
"""How long a client that was refused may go on sending: closing while it sends would reset the connection, and the
answer with it."""
STALLED_SECONDS = 60.0
"""How long a client may take none of an answer that waits for it; then its connection, and the answer, are let go."""
SHUTDOWN_SECONDS = 5
"""How long requests in flight may take once the port is closed."""
GIVE_UP_SECONDS = 4.0
"""How long after the port closed requests that still wait for a search are failed."""
BEAT_SECONDS = 2


class BoundedHead(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with limits that httptools lacks: a head over MAX_HEAD_BYTES is a 431 and is not parsed to its
    end, and one slower than `head_seconds`, which a subclass sets (uvicorn takes a class), is closed.

    The parser gets what arrives in pieces, so that it never sees much more of a head than is allowed. Trailers and
    extensions of a chunked body are held to the same limit.
    """

    head_seconds: float
    _head_bytes = 0
    """What the parser got since it last completed a head, a part of a body or a request."""
    _refused = False
    """What still arrives is dropped."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        start = 0
        while start < len(data) and not self._refused and not self.transport.is_closing():
            piece = data[start : start + min(_PIECE_BYTES, MAX_HEAD_BYTES - self._head_bytes)]
            start += len(piece)
            self._head_bytes += len(piece)
            super().data_received(piece)
            if self._head_bytes >= MAX_HEAD_BYTES:
                self._refuse_head()

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()
        self._stop_timer()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # no further request has arrived
            self._stop_timer()
            self._timer = self.loop.call_later(max(self.head_seconds, KEEP_ALIVE_SECONDS), self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _refuse_head(self) -> None:
        self._refused = True
        self._stop_timer()
        if self.cycle is None or self.cycle.response_complete:
            detail = f"the head of a request may have {MAX_HEAD_BYTES} bytes; send fewer or shorter headers."
            answer = problem({"type": "http"}, 431, detail, {"Connection": "close"})
            head = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
            self.transport.write(STATUS_LINE[431] + head + b"\r\n" + bytes(answer.body))
            self.transport.write_eof()
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """uvicorn's server for the app of a service. It reports when it takes requests, and drains before it ends."""

    def __init__(
        self,
        app: FastAPI,
        config: EnvironmentConfig,
        started: Callable[[], object] = lambda: None,
        beat: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`started` is called once requests are taken; `beat` is awaited then and every BEAT_SECONDS from then on."""
        super().__init__(
            uvicorn.Config(
                app,
                http=type("Http", (BoundedHead,), {"head_seconds": config.read_seconds}),
                ws="none",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                callback_notify=beat,
                timeout_notify=BEAT_SECONDS,
            )
        )
        self._service: ServiceState = app.state.service
        self._drain_seconds = config.drain_seconds
        self._report_started = started
        self._port_closes_at = math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report."""
        await super().startup(sockets)
        self._report_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's handler of SIGTERM and SIGINT."""
        log.info("stopped by signal %d", sig)
        if not self._service.draining.is_set():
            self._service.draining.set()
            self._port_closes_at = time.monotonic() + self._drain_seconds
        else:
            self.should_exit = True
            for number in HANDLED_SIGNALS:
                signal.signal(number, signal.SIG_DFL)

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's look, ten times a second, at whether to end."""
        self.should_exit |= time.monotonic() >= self._port_closes_at
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port and end requests in flight."""
        giving_up = asyncio.create_task(self._give_up())
        await super().shutdown(sockets)
        giving_up.cancel()

    async def _give_up(self) -> None:
        await asyncio.sleep(GIVE_UP_SECONDS)
        await self._service.give_up()


def open_app(
    config: EnvironmentConfig,
    token: str | None,
    writer: Writer | None = None,
    extend: Callable[[FastAPI], object] | None = None,
) -> FastAPI:
    """The app of an environment that is opened here and has answered a first search."""
    environment = Environment.open(config)
    environment.search([SearchPlan.of("warm up")])
    app = create_app(environment, config, token, writer, extend)
    gc.freeze()  # what is open now stays open: the collector need not walk it again
    return app


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to the address, to be closed by the caller (`with`). It does not listen yet: until it does,
    connections are refused, not kept.

    Raises UserError where the port is in use or the host is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as stack:
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform == "linux":  # connections inherit it
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * STALLED_SECONDS))
            listener.bind(address)
            stack.pop_all()
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
