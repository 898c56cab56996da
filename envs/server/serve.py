"""Serves an environment, in one process or in several."""

from collections.abc import Callable
from functools import partial

from fastapi import FastAPI

from ...configs.schema import EnvironmentConfig
from ...errors import UserError
from ..page.router import Writer
from .process import bound, is_loopback, run, url_of
from .workers import serve_workers


def serve(
    config: EnvironmentConfig,
    token: str | None = None,
    ready: Callable[[str], None] | None = None,
    writer: Writer | None = None,
    extend: Callable[[FastAPI], object] | None = None,
) -> None:
    """Open the environment and serve it until SIGTERM or SIGINT, then finish what is under way and return.

    `ready` gets the URL once requests are taken; `writer` and `extend` are as in `create_app`. Raises UserError where
    the port is in use, the host is not one of this machine, or a host other than loopback is asked for without a token,
    and what `Environment.open` raises.
    """
    if not token and not is_loopback(config.host):
        raise UserError(
            f"host {config.host!r} is reachable from other machines and no token is set. Set the environment variable "
            "named by client.token_env (QUERYLECT_TOKEN) to a secret, or serve on 127.0.0.1."
        )
    if (writer or extend) is not None and config.workers > 1:
        raise UserError(f"env.workers is {config.workers}; a rewriter is held by one. Set it to 1.")
    with bound(config.host, config.port) as listener:
        port = listener.getsockname()[1]
        tell = partial(ready, url_of(config.host, port)) if ready else _ignore
        if config.workers == 1:
            run(config, token, listener, tell, writer, extend)
            return
    with bound(config.host, port, shared=True):
        serve_workers(config, token, port, tell)


def _ignore() -> None:
    """Report to no one."""
