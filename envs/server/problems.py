"""Every error of the service as problem+json (RFC 9457) that says what to do."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from ...errors import EnvironmentUnavailableError, RequestError
from .batching import OverloadedError
from .schemas import Invalid, Problem

MEDIA_TYPE = "application/problem+json"
_MAX_INVALID = 20


def problem(request_id: str, status: int, detail: str, **fields: Any) -> Problem:
    """Problem details of an HTTP status."""
    phrase = HTTPStatus(status).phrase
    kind = "urn:querylect:" + phrase.lower().replace(" ", "-")
    return Problem(type=kind, title=phrase, status=status, detail=detail, request_id=request_id, **fields)


def problem_answer(body: Problem, headers: Mapping[str, str] | None = None) -> Response:
    content = body.model_dump_json(exclude_defaults=True)
    return Response(content, body.status, headers, media_type=MEDIA_TYPE)


def _request_id(request: Request) -> str:
    return str(request.scope.get("querylect_request_id", ""))


def add_problem_handlers(app: FastAPI) -> None:
    """Turn expected errors of routes into problem+json answers; the gate does so for all others."""

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, StarletteHTTPException)
        detail = str(error.detail)
        if error.status_code == 404 and detail == HTTPStatus(404).phrase:
            detail = f"there is no {request.url.path}; docs/environment.md lists the calls, GET /v1/environment is one."
        elif error.status_code == 405:
            detail = f"{request.url.path} does not take {request.method}; see the Allow header for what it takes."
        return problem_answer(problem(_request_id(request), error.status_code, detail), error.headers)

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        errors = error.errors()
        invalid = [
            Invalid(where=".".join(str(part) for part in item["loc"]), what=str(item["msg"]))
            for item in errors[:_MAX_INVALID]
        ]
        detail = f"{len(errors)} fields do not validate; mend them ('invalid' names the first {len(invalid)})."
        return problem_answer(problem(_request_id(request), 422, detail, invalid=invalid))

    async def on_refused(request: Request, error: Exception) -> Response:
        return problem_answer(problem(_request_id(request), 422, str(error)))

    async def on_overload(request: Request, error: Exception) -> Response:
        assert isinstance(error, OverloadedError)
        headers = {"Retry-After": str(error.retry_after)}
        return problem_answer(problem(_request_id(request), 503, str(error)), headers)

    async def on_outage(request: Request, error: Exception) -> Response:
        return problem_answer(problem(_request_id(request), 503, str(error)), {"Retry-After": "1"})

    app.add_exception_handler(StarletteHTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(RequestError, on_refused)
    app.add_exception_handler(OverloadedError, on_overload)
    app.add_exception_handler(EnvironmentUnavailableError, on_outage)
