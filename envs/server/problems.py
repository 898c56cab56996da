"""Every error of the service as problem+json (RFC 9457) that says what to do, and its entry in the OpenAPI document."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from ...errors import ConfigError, EnvironmentUnavailableError, MissingPackageError, RequestError
from ..schemas import Problem
from .batching import OverloadedError

MEDIA_TYPE = "application/problem+json"
REQUEST_ID = "querylect_request_id"
"""Key of the ASGI scope under which the middleware puts the request's id."""
_MAX_INVALID = 20
WRONG = (RequestError, ConfigError, MissingPackageError)
"""What a request asks for in vain: metrics, too."""
_DESCRIPTIONS = {
    400: "The body is no JSON.",
    401: "The bearer token is missing or wrong.",
    403: "Without a token: the Host header is no loopback host, or a page of another origin sent the request.",
    404: "There is no such question.",
    408: "The body took too long to arrive.",
    413: "The request is too large, or asks for too much at once.",
    422: "The request does not validate; `invalid` names the fields.",
    500: "The environment failed on this request; the service's log says why.",
    503: "Too many plans wait already, or the service goes down; ask again after Retry-After seconds.",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
    for status, text in _DESCRIPTIONS.items()
}
"""The errors of every call, for the OpenAPI document: most come from the middleware."""


def problem(
    scope: Scope,
    status: int,
    detail: str,
    headers: Mapping[str, str] | None = None,
    invalid: Mapping[str, str] | None = None,
) -> Response:
    """The answer to a request that failed with this HTTP status."""
    body = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        request_id=scope.get(REQUEST_ID, ""),
        invalid=dict(invalid or {}),
    )
    return Response(body.model_dump_json(), status, headers, media_type=MEDIA_TYPE)


def add_problem_handlers(app: FastAPI) -> None:
    """Turn expected errors of routes into problem+json answers; the middleware does so for all others."""
    for kind in (HTTPException, RequestValidationError, *WRONG, OverloadedError, EnvironmentUnavailableError):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return problem(request.scope, error.status_code, error.detail, error.headers)
    if isinstance(error, RequestValidationError):
        errors = error.errors()
        invalid = {".".join(map(str, item["loc"])): str(item["msg"]) for item in errors[:_MAX_INVALID]}
        detail = f"{len(errors)} fields do not validate; correct them ('invalid' names the first {len(invalid)})."
        return problem(request.scope, 422, detail, invalid=invalid)
    if isinstance(error, WRONG):
        return problem(request.scope, 422, str(error))
    return problem(request.scope, 503, str(error), {"Retry-After": "1"})
