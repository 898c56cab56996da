"""Who may ask, how large a body may be, and how a refusal looks (problem+json, RFC 9457).

A service without a token listens on a loopback address, but a browser on this machine carries other people's pages. One
of them can have its own host name resolved to 127.0.0.1 and read answers as its own (DNS rebinding): the Host header
shows that name. It cannot send a search from another origin, which takes a JSON body and so a preflight.
"""

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import ConfigError, EnvironmentUnavailableError, MissingPackageError, RequestError
from ..schemas import Problem
from .batching import OverloadedError, TooLargeError
from .metrics import Metrics

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/", "/page.js", "/healthz", "/readyz"})
"""Calls without the token."""
MAX_BODY_BYTES = 12 * 2**20
"""Enough for the texts of a request (MAX_WORK of schemas.py) in any script."""
MAX_OPEN_BYTES = 8 * MAX_BODY_BYTES
"""What the bodies of all unanswered requests may have together."""
READ_SECONDS = 60.0
"""How long a body may take to arrive."""
CLOSE = {"Connection": "close"}
MEDIA_TYPE = "application/problem+json"
STATUS: dict[type[Exception], int] = {
    TooLargeError: 413,
    RequestError: 422,
    ConfigError: 422,
    MissingPackageError: 422,
    OverloadedError: 503,
    EnvironmentUnavailableError: 503,
}
"""Of errors that a route raises."""
RESPONSES: dict[int | str, dict[str, object]] = {
    status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
    for status in (400, 401, 403, 408, 413, 422, 500, 503)
}
"""The errors of every call, for the OpenAPI document."""


class RequestMiddleware:
    """Lets through requests that carry the token, or come from this machine where none is set, with bodies within the
    limits; a body is read whole first."""

    def __init__(self, app: ASGIApp, token: str | None, metrics: Metrics) -> None:
        self._app, self._token, self._metrics = app, token, metrics
        self._open_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, body = time.perf_counter(), 500, bytearray()

        async def send_counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_sender(scope["path"], headers)
            if scope["method"] == "POST":
                await self._receive_body(body, headers, receive)
                receive = _replayed(bytes(body), receive)
            await self._app(scope, receive, send_counted)
        except HTTPException as refused:
            await problem(refused.status_code, refused.detail, refused.headers)(scope, receive, send_counted)
        finally:
            self._open_bytes -= len(body)
            route, seconds = getattr(scope.get("route"), "path", "none"), time.perf_counter() - started
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            log.info("%s %s %d %.4f s", scope["method"], scope["path"], status, seconds)

    def _check_sender(self, path: str, headers: Headers) -> None:
        if self._token is None and not all(map(_is_local, headers.getlist("host") or [""])):
            raise HTTPException(
                403,
                f"a service without a token answers programs that ask for localhost, 127.0.0.1 or [::1] alone (here: "
                f"{headers.get('host', '')!r}). Ask by such a name, or start it with a token: set QUERYLECT_TOKEN.",
                CLOSE,
            )
        expected = f"Bearer {self._token}".encode()
        sent = headers.get("authorization", "").encode("latin-1")
        if self._token is not None and path not in OPEN_PATHS and not hmac.compare_digest(sent, expected):
            raise HTTPException(
                401,
                "no token was sent, or another one than the service's. Send the header 'Authorization: Bearer TOKEN'; "
                "querylect's client takes it from the environment variable that client.token_env names.",
                {"WWW-Authenticate": "Bearer"},
            )

    async def _receive_body(self, body: bytearray, headers: Headers, receive: Receive) -> None:
        """Read the body into `body`; HTTPException where it is too large or too slow."""
        declared = headers.get("content-length", "")
        size, more = int(declared) if declared.isdecimal() else 0, True
        try:
            async with asyncio.timeout(READ_SECONDS):
                while more and size <= MAX_BODY_BYTES:
                    message = await receive()
                    body += message.get("body", b"")
                    self._open_bytes += len(message.get("body", b""))
                    if self._open_bytes > MAX_OPEN_BYTES:
                        raise HTTPException(503, "the requests in work are too large together; ask later.", CLOSE)
                    size, more = max(size, len(body)), message.get("more_body", False)
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {READ_SECONDS:g} s.", CLOSE) from None
        if size > MAX_BODY_BYTES:
            raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes. Send fewer plans at once.", CLOSE)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Receives a body that was read already, then what comes after it."""
    messages: Iterator[Message] = iter([{"type": "http.request", "body": body}])

    async def replay() -> Message:
        return next(messages, None) or await receive()

    return replay


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than localhost counts as reachable."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def _is_local(host: str) -> bool:
    """Whether a Host header names a loopback host."""
    with suppress(ValueError):
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    return False


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that failed with this HTTP status."""
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    retry = {"Retry-After": "1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return Response(body.model_dump_json(), status, {**retry, **(headers or {})}, media_type=MEDIA_TYPE)


def add_problem_handlers(app: FastAPI) -> None:
    """Answer the errors of routes by problem+json; uvicorn logs those that nobody expected."""
    for kind in (StarletteHTTPException, RequestValidationError, *STATUS, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(_: Request, error: Exception) -> Response:
    if isinstance(error, StarletteHTTPException):
        return problem(error.status_code, error.detail, error.headers)
    if isinstance(error, RequestValidationError):
        fields = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        more = f"; and {len(fields) - 20} more" if len(fields) > 20 else ""
        return problem(422, f"the request does not validate; {'; '.join(fields[:20])}{more}.")
    for kind, status in STATUS.items():
        if isinstance(error, kind):
            return problem(status, str(error))
    return problem(500, "the environment failed on this request; the service's log says why.")
