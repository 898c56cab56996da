"""Completes `GET /v1/openapi.json` with the token, the limits, and every error that a call may answer.

FastAPI declares only a 422 of its own form. This service answers problem+json, and most of its errors come from the
middleware or from the exception handlers, so all are declared here.
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from ..schemas import Limits, Problem
from .middleware import OPEN_PATHS, WATCH_PATHS
from .problems import MEDIA_TYPE

_REFS = "#/components/schemas/{model}"
_ERRORS: Mapping[int, str] = {
    400: "The body cannot be decoded.",
    401: "The bearer token is missing or wrong.",
    403: "A page of another origin sent the request.",
    404: "There is no such split or question.",
    408: "The body took too long to arrive.",
    413: "The request is too large, or asks for too much at once.",
    421: "The Host header names no loopback host, and the service has no token.",
    422: "The request does not validate; `invalid` names the fields.",
    500: "The environment failed on this request; the service's log says why.",
    503: "Too many plans wait already, or the service goes down; ask again after Retry-After seconds.",
}
_EVERYWHERE = {413, 500}
"""The middleware refuses any request that declares too large a body; anything may fail."""
_WITH_BODY = {400, 408, 422}
"""Of calls that take a body, those of an extension too."""
_OF_PATH = {"/v1/questions": {404, 422}, "/v1/step": {404}}
_REQUEST_ID = {"description": "Names the request in the service's log.", "schema": {"type": "string"}}
_HEADERS = {
    401: {"WWW-Authenticate": {"description": "The scheme asked for.", "schema": {"type": "string"}}},
    503: {"Retry-After": {"description": "Whole seconds to wait.", "schema": {"type": "integer", "minimum": 1}}},
}


def declare_errors(app: FastAPI, *, token: bool, limits: Limits) -> None:
    """Add all errors and limits to the app's schema; `token` says whether calls need one."""
    app.openapi = cache(partial(_openapi_schema, app, token, limits))  # type: ignore[method-assign]


def _openapi_schema(app: FastAPI, token: bool, limits: Limits) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own form of a 422
        schemas.pop(unused, None)
    for (model, name), bounds in _bounds(limits).items():
        field = schemas.get(f"{model}-Input", schemas.get(model))["properties"][name]
        next((kind for kind in field.get("anyOf", []) if kind["type"] != "null"), field).update(bounds)
    schemas |= models_json_schema([(Problem, "serialization")], ref_template=_REFS)[1]["$defs"]
    components["headers"] = {"RequestId": _REQUEST_ID}
    components["responses"] = {str(status): _error(status) for status in _ERRORS}
    if token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, methods in schema["paths"].items():
        statuses = _EVERYWHERE | _OF_PATH.get(path, set())
        guarded = token and path not in OPEN_PATHS
        statuses |= _WITH_BODY if "post" in methods else set()
        statuses |= ({401} if guarded else set()) | (set() if path in WATCH_PATHS else {503})
        if not token:
            statuses |= {421} if path in OPEN_PATHS else {403, 421}
        for operation in methods.values():
            responses = operation["responses"]
            responses["200"]["headers"] = {"X-Request-ID": {"$ref": "#/components/headers/RequestId"}}
            responses |= {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}
            if guarded:
                operation["security"] = [{"token": []}]
    return schema


def _bounds(limits: Limits) -> Mapping[tuple[str, str], Mapping[str, int]]:
    """What the limits say of a field of a model. Those of a whole request have no words in a schema."""
    return {
        ("SearchRequest", "plans"): {"maxItems": limits.max_plans},
        ("StepRequest", "steps"): {"maxItems": limits.max_plans},
        ("SearchPlan", "probes"): {"maxItems": limits.max_terms},
        ("SearchPlan", "k"): {"maximum": limits.max_k},
        ("Probe", "terms"): {"maxItems": limits.max_terms},
        ("Probe", "k"): {"maximum": limits.max_k},
        ("Term", "text"): {"maxLength": limits.max_characters},
    }


def _error(status: int) -> dict[str, object]:
    problem = {"$ref": _REFS.format(model=Problem.__name__)}
    return {
        "description": _ERRORS[status],
        "headers": {"X-Request-ID": {"$ref": "#/components/headers/RequestId"}, **_HEADERS.get(status, {})},
        "content": {MEDIA_TYPE: {"schema": problem}},
    }
