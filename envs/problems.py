"""Every error of the service as problem+json (RFC 9457) that says what to do, and the gate that each request passes.

The gate is plain ASGI in front of the application: it checks the token before a byte of the body is read, refuses a
body that is too large while it arrives, and gives each request an id.
"""

import hmac
import logging
import re
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import RequestError
from .batching import OverloadedError
from .wire import Invalid, Problem

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024
MEDIA_TYPE = "application/problem+json"
OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
_MAX_INVALID = 20
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def problem(request_id: str, status: int, detail: str, **more: Any) -> Problem:
    """Problem details of an HTTP status."""
    phrase = HTTPStatus(status).phrase
    kind = "urn:querylect:" + phrase.lower().replace(" ", "-")
    return Problem(type=kind, title=phrase, status=status, detail=detail, request_id=request_id, **more)


def _answer(body: Problem, headers: Mapping[str, str] | None = None) -> Response:
    content = body.model_dump_json(exclude_defaults=True)
    return Response(content, body.status, headers, media_type=MEDIA_TYPE)


def _request_id(request: Request) -> str:
    return str(request.scope.get("querylect_request_id", ""))


class Gate:
    """Lets through requests that carry the token, where one is set, and a body of at most MAX_BODY_BYTES."""

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        given_id = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else uuid.uuid4().hex
        scope["querylect_request_id"] = request_id

        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id.encode())]}
            await send(message)

        refusal = self._refusal(scope["path"], headers, request_id)
        if refusal is not None:
            await refusal(scope, receive, send_with_id)
        else:
            try:
                await self._app(scope, _limited(receive), send_with_id)
            except Exception:
                log.exception("request %s %s %s failed", request_id, scope["method"], scope["path"])
                if status:
                    raise
                await _crashed(request_id)(scope, receive, send_with_id)
        log.debug("request %s %s %s: %d", request_id, scope["method"], scope["path"], status)

    def _refusal(self, path: str, headers: Mapping[bytes, bytes], request_id: str) -> Response | None:
        if self._token is not None and path not in OPEN_PATHS:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                seen = "the token sent is not the service's" if given else "no bearer token was sent"
                detail = (
                    f"{seen}. Send the header 'Authorization: Bearer TOKEN' with the token that the service was "
                    "started with; querylect's client takes it from the environment variable named by client.token_env."
                )
                return _answer(problem(request_id, 401, detail), {"WWW-Authenticate": "Bearer"})
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
            return _answer(problem(request_id, 413, _too_large(int(declared))))
        return None


def _limited(receive: Receive) -> Receive:
    """The same body, cut off with a 413 where it grows beyond MAX_BODY_BYTES."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            raise HTTPException(413, _too_large(seen))
        return message

    return limited


def _crashed(request_id: str) -> Response:
    detail = f"the environment failed on this request; the service's log says why, under request id {request_id}."
    return _answer(problem(request_id, 500, detail))


def _too_large(seen: int) -> str:
    return f"the body has at least {seen} bytes; at most {MAX_BODY_BYTES} are taken. Send fewer plans in one request."


def add_problem_handlers(app: FastAPI) -> None:
    """Make every foreseen error that leaves a route a problem+json answer; the gate does so for all others."""

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, StarletteHTTPException)
        detail = str(error.detail)
        if error.status_code == 404 and detail == HTTPStatus(404).phrase:
            detail = f"there is no {request.url.path}; docs/environment.md lists the calls, GET /v1/environment is one."
        elif error.status_code == 405:
            detail = f"{request.url.path} does not take {request.method}; see the Allow header for what it takes."
        return _answer(problem(_request_id(request), error.status_code, detail), error.headers)

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = error.errors()
        invalid = [
            Invalid(where=".".join(str(part) for part in item["loc"]), what=str(item["msg"]))
            for item in found[:_MAX_INVALID]
        ]
        detail = f"{len(found)} fields do not validate; mend them ('invalid' names the first {len(invalid)})."
        return _answer(problem(_request_id(request), 422, detail, invalid=invalid))

    async def on_refused(request: Request, error: Exception) -> Response:
        return _answer(problem(_request_id(request), 422, str(error)))

    async def on_overload(request: Request, error: Exception) -> Response:
        assert isinstance(error, OverloadedError)
        headers = {"Retry-After": str(error.retry_after)}
        return _answer(problem(_request_id(request), 503, str(error)), headers)

    app.add_exception_handler(StarletteHTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(RequestError, on_refused)
    app.add_exception_handler(OverloadedError, on_overload)
