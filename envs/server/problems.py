"""Every error of the service as problem+json (RFC 9457) that says what to do."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from ...errors import EnvironmentUnavailableError, RequestError
from ..schemas import Invalid, Problem
from .batching import OverloadedError

MEDIA_TYPE = "application/problem+json"
REQUEST_ID = "querylect_request_id"
"""Key of the ASGI scope under which the middleware puts the request's id."""
_MAX_INVALID = 20


def problem(
    scope: Scope,
    status: int,
    detail: str,
    headers: Mapping[str, str] | None = None,
    invalid: Sequence[Invalid] = (),
) -> Response:
    """The answer to a request that failed with this HTTP status."""
    phrase = HTTPStatus(status).phrase
    kind = "urn:querylect:" + phrase.lower().replace(" ", "-")
    body = Problem(
        type=kind,
        title=phrase,
        status=status,
        detail=detail,
        request_id=scope.get(REQUEST_ID, ""),
        invalid=list(invalid),
    )
    return Response(body.model_dump_json(exclude_defaults=True), status, headers, media_type=MEDIA_TYPE)


def add_problem_handlers(app: FastAPI) -> None:
    """Turn expected errors of routes into problem+json answers; the middleware does so for all others."""
    for kind in (HTTPException, RequestValidationError, RequestError, OverloadedError, EnvironmentUnavailableError):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(ClientDisconnect, _client_gone)


async def _client_gone(request: Request, error: Exception) -> Response:
    """An answer that nobody receives; the log and the metrics show its status."""
    return Response(status_code=499)


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        detail = error.detail
        if error.status_code == 404 and detail == HTTPStatus(404).phrase:
            detail = f"there is no {request.url.path}; docs/environment.md lists the calls, GET /v1/environment is one."
        elif error.status_code == 405:
            detail = f"{request.url.path} does not take {request.method}; see the Allow header for what it takes."
        return problem(request.scope, error.status_code, detail, error.headers)
    if isinstance(error, RequestValidationError):
        errors = error.errors()
        invalid = [
            Invalid(where=".".join(map(str, item["loc"])), what=str(item["msg"])) for item in errors[:_MAX_INVALID]
        ]
        detail = f"{len(errors)} fields do not validate; correct them ('invalid' names the first {len(invalid)})."
        return problem(request.scope, 422, detail, invalid=invalid)
    if isinstance(error, RequestError):
        return problem(request.scope, 422, str(error))
    wait = error.retry_after if isinstance(error, OverloadedError) else 1
    return problem(request.scope, 503, str(error), {"Retry-After": str(wait)})
