"""ASGI middleware in front of the application: who may ask, how large a body may be, and a log line for each request.

A service without a token listens on a loopback address, but a browser on this machine carries other people's pages. One
of them can have its own host name resolved to 127.0.0.1 and read answers as its own (DNS rebinding): the Host header
shows that name. One of another origin can send requests without reading the answers: Sec-Fetch-Site shows that. A
service with a token needs neither check, since no other page can send the token.
"""

import asyncio
import hmac
import ipaddress
import json
import logging
import time
import uuid
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import Metrics
from .problems import REQUEST_ID, problem

log = logging.getLogger(__name__)
request_log = logging.getLogger("querylect.envs.requests")

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
"""Calls without the token."""
MAX_BODY_BYTES = 12 * 2**20
"""Enough for the texts of a request (MAX_CHARACTERS of schemas.py) in any script."""
MAX_OPEN_BYTES = 8 * MAX_BODY_BYTES
"""What the bodies of all unanswered requests may have together."""
READ_SECONDS = 60.0
"""How long a body may take to arrive."""
CLOSE = {"Connection": "close"}


@dataclass(kw_only=True, slots=True)
class RequestMiddleware:
    """Lets through requests that carry the token, or come from this machine where none is set, with bodies within the
    limits."""

    app: ASGIApp = field(kw_only=False)
    token: str | None
    metrics: Metrics
    open_bytes: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = scope[REQUEST_ID] = uuid.uuid4().hex
        started, status, size = time.perf_counter(), 0, 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id.encode())]}
            await send(message)

        async def bounded() -> Message:
            nonlocal size
            message = await _soon(receive(), started) if scope["method"] == "POST" and not status else await receive()
            added = len(message.get("body", b""))
            size += added
            self.open_bytes += added
            _check_size(size)
            if self.open_bytes > MAX_OPEN_BYTES:
                raise HTTPException(
                    503,
                    f"the requests in work hold {self.open_bytes} bytes, and at most {MAX_OPEN_BYTES} are held; ask "
                    "again later, or send fewer plans in one request.",
                    {"Retry-After": "1", **CLOSE},
                )
            return message

        try:
            self._check(scope, Headers(scope=scope))
            await self.app(scope, bounded, send_with_id)
        except HTTPException as refused:
            await problem(scope, refused.status_code, refused.detail, refused.headers)(scope, receive, send_with_id)
        except Exception:
            log.exception("request %s %s %s failed", request_id, scope["method"], scope["path"])
            if status:
                raise
            detail = f"the environment failed on this request; see request id {request_id} in the service's log."
            await problem(scope, 500, detail)(scope, receive, send_with_id)
        finally:
            self.open_bytes -= size
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path", "none")
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(seconds)
            line = {"request_id": request_id, "method": scope["method"], "path": scope["path"], "status": status}
            request_log.info("%s", json.dumps({**line, "seconds": round(seconds, 4)}))

    def _check(self, scope: Scope, headers: Headers) -> None:
        """HTTPException for a request that is refused before its body is read."""
        path = scope["path"]
        if self.token is None and not _is_local(headers, any_site=path in OPEN_PATHS):
            raise HTTPException(
                403,
                f"a service without a token answers its own page and programs that ask for localhost, 127.0.0.1 or "
                f"[::1] alone (here: {headers.get('host', '')!r}), so that no page of another site can use it. Ask by "
                "such a name, or start the service with a token: set QUERYLECT_TOKEN.",
                CLOSE,
            )
        if self.token is not None and path not in OPEN_PATHS:
            _check_token(headers, self.token)
        declared = headers.get("content-length", "0")
        if declared.isdecimal():
            _check_size(int(declared))


async def _soon(receiving: Awaitable[Message], started: float) -> Message:
    try:
        async with asyncio.timeout(started + READ_SECONDS - time.perf_counter()):
            return await receiving
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {READ_SECONDS:g} s.", CLOSE) from None


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise HTTPException(
            413,
            f"the body has at least {size} bytes; at most {MAX_BODY_BYTES} are taken. Send fewer plans in one request.",
            CLOSE,
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than localhost counts as reachable."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def _is_local(headers: Headers, any_site: bool) -> bool:
    """Whether the Host header is there, once, and names a loopback host, and no page of another site is asking."""
    hosts = headers.getlist("host")
    try:
        named_local = len(hosts) == 1 and is_loopback(urlsplit(f"//{hosts[0]}").hostname or "")
    except ValueError:
        return False
    return named_local and (any_site or headers.get("sec-fetch-site", "none") in ("none", "same-origin"))


def _check_token(headers: Headers, token: str) -> None:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    sent = credentials.strip().encode("latin-1")
    if scheme.lower() != "bearer" or not hmac.compare_digest(sent, token.encode()):
        reason = "the token sent is not the service's" if credentials else "no bearer token was sent"
        raise HTTPException(
            401,
            f"{reason}. Send the header 'Authorization: Bearer TOKEN' with the token that the service was started "
            "with; querylect's client takes it from the environment variable named by client.token_env.",
            {"WWW-Authenticate": "Bearer"},
        )
