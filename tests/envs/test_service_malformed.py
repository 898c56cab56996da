"""Malformed requests: refused as the service's OpenAPI document declares, without side effects.

The number of requests is that of QUERYLECT_REQUESTS (400 where unset).
"""

import os

import httpx
import psutil
import pytest
import schemathesis
from querylect.envs.client.child_process import local_service
from querylect.envs.plan import SearchPlan
from querylect.envs.server.app import create_app

from ..malformed import send_damaged, send_drawn, send_raw

pytestmark = pytest.mark.server

REQUESTS = int(os.environ.get("QUERYLECT_REQUESTS", "400"))


@pytest.mark.timeout(1800)
def test_malformed_requests_get_an_error_of_their_own_and_leave_nothing_behind(small_environment):
    earlier = {child.pid for child in psutil.Process().children()}
    good = {"plans": [SearchPlan.of("triptan headache").model_dump()]}

    def storm(service, number, seed):
        drawn, raw = number // 4, max(8, number // 50)
        url, headers = service.url, service.headers
        sent = send_drawn(url, drawn, seed, headers) + send_damaged(url, number - drawn, seed, headers)
        return sent + send_raw(url, raw, seed)

    with (
        local_service(small_environment) as service,
        httpx.Client(base_url=service.url, headers=service.headers, trust_env=False, timeout=300) as http,
    ):
        (process,) = [child for child in psutil.Process().children() if child.pid not in earlier]
        expected = http.post("/v1/search", json=good).json()
        sent = storm(service, REQUESTS // 2, 1)
        warm = process.memory_info().rss
        sent += storm(service, REQUESTS // 2, 2)
        after = process.memory_info().rss
        assert http.post("/v1/search", json=good).json() == expected
        connections = process.net_connections()
    print(f"{dict(sent.statuses)}; resident {warm} bytes after half of them, {after} at the end")
    assert sent.wrong == []
    assert {200, 400, 404, 405, 413, 422} <= sent.statuses.keys()
    assert after <= 1.05 * warm
    assert len(connections) < 10


def test_the_document_is_valid_and_declares_problems_and_the_token(environment):
    for token in (None, "t"):
        document = create_app(environment, token).openapi()
        assert document["openapi"].startswith("3.1")
        schemathesis.openapi.from_dict(document).validate()
        assert "HTTPValidationError" not in document["components"]["schemas"]
        for operation in [entry for methods in document["paths"].values() for entry in methods.values()]:
            assert ("security" in operation) == (token is not None)
            assert {"422", "500", "503"} <= operation["responses"].keys()
            assert list(operation["responses"]["422"]["content"]) == ["application/problem+json"]


def test_an_answer_that_the_document_does_not_declare_is_noticed(environment, run_app):
    """A 500, a body of another form and an undeclared status are each detected by both senders."""
    app = create_app(environment)
    violations = {}

    def changed(status, content_type, body):
        async def wrapped(scope, receive, send):
            if scope["type"] != "http" or scope["path"] not in ("/v1/search", "/v1/step"):
                await app(scope, receive, send)
                return
            headers = [(b"content-type", content_type), (b"x-request-id", b"r")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        return wrapped

    for name, answer in {
        "crash": (500, b"application/problem+json", b'{"title":"t","status":500,"detail":"d"}'),
        "undeclared": (418, b"application/problem+json", b'{"title":"t","status":418,"detail":"d"}'),
        "another form": (422, b"application/json", b'{"detail": []}'),
    }.items():
        with run_app(changed(*answer)) as url:
            violations[name] = [send_drawn(url, 6, 1).wrong, send_damaged(url, 20, 1).wrong]
    assert all(wrong for both in violations.values() for wrong in both), violations
