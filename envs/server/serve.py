"""Serves an environment in this process. On SIGTERM or SIGINT the port closes and requests in flight are finished."""

import gc
import socket
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ...configs.schema import EnvironmentConfig
from ...errors import UserError
from ..environment import Environment
from ..plan import SearchPlan
from .app import Extend, create_app
from .limits import is_loopback

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

    `ready` gets the URL once requests are taken; `extend` is as in `create_app`. Raises UserError where a host other
    than loopback is asked for without a token, what `Environment.open` raises, and SystemExit where uvicorn cannot
    take the port.
    """
    if not token and not is_loopback(config.host):
        raise UserError(
            f"host {config.host!r} is reachable from other machines and no token is set. Set the environment variable "
            "QUERYLECT_TOKEN to a secret, or serve on 127.0.0.1."
        )
    settings = uvicorn.Config(
        partial(open_app, config, token, extend),
        config.host,
        config.port,
        factory=True,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    with settings.bind_socket() as listener:  # it listens once the environment is open
        settings.load()  # here, where a signal still ends it
        report = partial(ready, _url(config.host, listener.getsockname()[1]))
        _Server(settings, report).run(sockets=[listener])


def open_app(config: EnvironmentConfig, token: str | None, extend: Extend | None = None) -> FastAPI:
    """The app of an environment that is opened here and has answered a first search."""
    environment = Environment.open(config)
    environment.rank([SearchPlan.of("warm up")])
    app = create_app(environment, token, extend)
    gc.freeze()  # what is open now stays open: the collector need not walk it again
    return app


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


def _url(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
