"""Who may ask, how large a body may be, and how a refusal looks (problem+json, RFC 9457).

A service without a token listens on a loopback address, but a browser on this machine carries other people's pages. One
of them can have its own host name resolved to 127.0.0.1 and read answers as its own (DNS rebinding): the Host header
shows that name. It cannot send a search from another origin, which takes a JSON body and so a preflight.
"""

import hmac
import ipaddress
import logging
import time
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import ConfigError, EnvironmentUnavailableError, MissingPackageError, RequestError
from ..schemas import Problem
from .batching import Metrics, OverloadedError, TooLargeError

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/", "/page.js", "/healthz", "/readyz"})
"""Calls without the token."""
MAX_BODY_BYTES = 12 * 2**20
"""Enough for the texts of a request (MAX_WORK of schemas.py) in any script."""
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
    for status in (400, 401, 403, 413, 422, 500, 503)
}
"""The errors of every call, for the OpenAPI document."""


class RequestMiddleware:
    """Lets through requests that carry the token, or come from this machine where none is set, with bodies within the
    limit."""

    def __init__(self, app: ASGIApp, token: str | None, metrics: Metrics) -> None:
        self._app, self._token, self._metrics = app, token, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, size = time.perf_counter(), 500, 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            _check_size(size)
            return message

        async def send_noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_sender(scope["path"], headers)
            _check_size(int(headers.get("content-length", 0)))
            await self._app(scope, receive_limited, send_noted)
        except HTTPException as refused:
            await problem(refused.status_code, refused.detail, refused.headers)(scope, receive, send_noted)
        finally:
            route, seconds = getattr(scope.get("route"), "path", "none"), time.perf_counter() - started
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            log.info("%s %s %d %.4f s", scope["method"], scope["path"], status, seconds)

    def _check_sender(self, path: str, headers: Headers) -> None:
        if self._token is None and not _is_local(headers.get("host", "")):
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


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes. Send fewer plans at once.", CLOSE)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_local(host: str) -> bool:
    """Whether a Host header names a loopback host."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
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
        fields = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:20]]
        return problem(422, f"the request does not validate; {'; '.join(fields)}.")
    for kind, status in STATUS.items():
        if isinstance(error, kind):
            return problem(status, str(error))
    return problem(500, "the environment failed on this request; the service's log says why.")
