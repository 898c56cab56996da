"""ASGI middleware in front of the application.

It checks the token, or without one where the request comes from, before a byte of the body is read; bounds the body
while it arrives (bodies.py); refuses new work while the service shuts down; and gives each request an id, counts it and
logs one line about it.

A service without a token answers programs on this machine and its own page. It listens on a loopback address, but a
browser on this machine carries other people's pages. One of them can have its own host name resolved to 127.0.0.1 and
read answers as its own (DNS rebinding): the Host header shows that name. One of another origin can send requests
without reading the answers: Sec-Fetch-Site or Origin show that. A service with a token needs neither check, since no
other page can send the token.
"""

import asyncio
import hmac
import ipaddress
import json
import logging
import re
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .batching import GOING_DOWN
from .bodies import CLOSE, BodyLimits
from .metrics import Metrics
from .problems import REQUEST_ID, problem

log = logging.getLogger(__name__)
request_log = logging.getLogger("querylect.envs.requests")

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
"""Calls without the token."""
WATCH_PATHS = frozenset({"/healthz", "/metrics"})
"""Calls that are answered even during shutdown."""
NOTES = "querylect_notes"
"""Key of the ASGI scope under which routes put extra fields of the request's log line."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::\d*)?")
"""The Host header of RFC 9110 (7.2), port included."""


def note(scope: Scope, **facts: object) -> None:
    """Add fields to the log line of this request; they are written as JSON."""
    scope.setdefault(NOTES, {}).update(facts)


@dataclass(kw_only=True, slots=True)
class RequestMiddleware:
    """Lets through requests that carry the token, or come from this machine where none is set, and bodies within
    the limits."""

    app: ASGIApp = field(kw_only=False)
    token: str | None
    bodies: BodyLimits
    draining: asyncio.Event
    metrics: Metrics
    log_requests: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        sent_id = headers.get("x-request-id", "")
        request_id = scope[REQUEST_ID] = sent_id if _REQUEST_ID.fullmatch(sent_id) else uuid.uuid4().hex
        started, status, size = time.perf_counter(), 0, 0

        async def send_with_id(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id.encode())]}
            size += len(message.get("body", b""))
            await send(message)

        self.metrics.under_way.inc()
        try:
            self._check(scope, headers)
            async with self.bodies.limited(receive) as limited:
                await self.app(scope, limited, send_with_id)
        except HTTPException as refused:
            await problem(scope, refused.status_code, refused.detail, refused.headers)(scope, receive, send_with_id)
        except Exception:
            log.exception("request %s %s %s failed", request_id, scope["method"], scope["path"])
            if status:
                raise
            detail = f"the environment failed on this request; see request id {request_id} in the service's log."
            await problem(scope, 500, detail)(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            self.metrics.under_way.dec()
            route = getattr(scope.get("route"), "path", "none")
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(seconds)
            if self.log_requests:
                _write_line(scope, status, size, seconds)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """HTTPException for a request that is refused before its body is read."""
        path = scope["path"]
        if self.token is None and not _names_loopback(headers):
            raise HTTPException(
                421,
                f"the Host header is {headers.get('host', '')!r}, and a service without a token answers to localhost, "
                "127.0.0.1 or [::1] alone, so that no page of another site can read it. Ask by such a name, or start "
                "the service with a token: set the environment variable named by client.token_env (QUERYLECT_TOKEN).",
                CLOSE,
            )
        if self.token is None and path not in OPEN_PATHS and _is_cross_origin(headers):
            raise HTTPException(
                403,
                "a page of another origin sent this, and a service without a token answers its own page and programs "
                "alone. Open the service's own page, or call the service from a program.",
                CLOSE,
            )
        if self.token is not None and path not in OPEN_PATHS:
            _check_token(headers, self.token)
        if self.draining.is_set() and path not in WATCH_PATHS:
            raise HTTPException(503, GOING_DOWN, {"Retry-After": "1", **CLOSE})
        declared = headers.get("content-length", "0")
        if declared.isdecimal():
            self.bodies.check_size(int(declared))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than localhost counts as reachable."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def _names_loopback(headers: Headers) -> bool:
    """Whether the Host header is there, once, and names a loopback host."""
    hosts = headers.getlist("host")
    parts = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    return parts is not None and is_loopback(parts["v6"] or parts["name"])


def _is_cross_origin(headers: Headers) -> bool:
    """Whether a browser says that a page of another origin sent the request; a program says nothing."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")


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


def _write_line(scope: Scope, status: int, size: int, seconds: float) -> None:
    if request_log.isEnabledFor(logging.INFO):
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": scope[REQUEST_ID],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 4),
            "bytes": size,
            **scope.get(NOTES, {}),
        }
        request_log.info("%s", json.dumps(line, ensure_ascii=False))
