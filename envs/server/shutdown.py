"""How a serving process ends: the first SIGTERM or SIGINT refuses new work, then the port closes.

It stands between the signals and uvicorn, whose handlers close the port and wait for the requests in flight. The port
closes `drain_seconds` after the first signal, or at the second; a third signal kills the process. Requests that still
wait for a search GIVE_UP_SECONDS after the port closed are failed, so that they get their 503 before uvicorn cuts them
off.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5
"""How long requests in flight may take once the port is closed."""
GIVE_UP_SECONDS = 4.0
"""How long after the port closed requests that still wait for a search are failed."""
NO_SIGNAL = 0
"""uvicorn raises the signal that ended it again when it is done. Told this one, it returns, and the process ends as any
other."""


class Shutdown:
    """Whether the service is going down; once begun it does not end."""

    def __init__(self, drain_seconds: float, give_up: Callable[[], Awaitable[None]]) -> None:
        """`give_up` fails what still waits for a search."""
        self.begun = False
        self._drain_seconds = drain_seconds
        self._give_up = give_up
        self._giving_up: asyncio.Future[None] | None = None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handle signals inside the block, within the server's event loop. Only the main thread receives any."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        server_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        timers: list[asyncio.TimerHandle] = []
        port_closed = False

        def close_port(number: int) -> None:
            nonlocal port_closed
            if not port_closed:
                port_closed = True
                if callable(handler := server_handlers[signal.Signals(number)]):
                    handler(NO_SIGNAL, None)
                timers.append(loop.call_later(GIVE_UP_SECONDS, fail_waiting))

        def fail_waiting() -> None:
            self._giving_up = asyncio.ensure_future(self._give_up())

        def on_signal(number: int, _frame: FrameType | None) -> None:
            log.info("stopped by signal %d", number)
            drain = self._drain_seconds
            if self.begun:
                drain = 0.0
                for handled in server_handlers:
                    signal.signal(handled, signal.SIG_DFL)
            self.begun = True
            loop.call_soon_threadsafe(lambda: timers.append(loop.call_later(drain, close_port, number)))

        for number in server_handlers:
            signal.signal(number, on_signal)
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()
            for number, handler in server_handlers.items():
                signal.signal(number, handler)
