"""Malformed requests: refused as the service's OpenAPI document declares, without side effects.

schemathesis draws from the service's own document what fits it and what does not; RAW is bytes that are no HTTP. The
number of requests is that of QUERYLECT_REQUESTS (200 where unset).
"""

import os
import random
import socket
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from querylect.envs.client.child_process import local_service
from querylect.envs.plan import SearchPlan
from querylect.envs.server.app import create_app
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

pytestmark = pytest.mark.server

REQUESTS = int(os.environ.get("QUERYLECT_REQUESTS", "200"))
RAW = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET /nothing HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 20_000 + b"\r\n",
]
DRAWN_ITEMS = 2
"""Longest list that is drawn: what is wrong with a request seldom depends on it, and drawing takes time."""
SHOWN = 20


@dataclass
class Sent:
    """What came back: how often each status, and the answers that break a promise."""

    statuses: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(self.statuses + other.statuses, (self.wrong + other.wrong)[:SHOWN])

    def blame(self, what: str) -> None:
        if len(self.wrong) < SHOWN:
            self.wrong.append(what)


def send_drawn(url, number, seed, headers=None):
    """About `number` requests that schemathesis draws from the service's document, half of them against it."""
    document = httpx.get(f"{url}/v1/openapi.json", headers=headers, trust_env=False, timeout=60).json()
    for described in (entry for methods in document["paths"].values() for entry in methods.values()):
        described.pop("security", None)  # or a token would be drawn as well, in the place of that in the headers
    drawn_from = _with_short_lists(document)
    operations = [
        drawn.ok()
        for drawn in schemathesis.openapi.from_dict(drawn_from).get_all_operations()
        if drawn.ok().method == "post" or drawn.ok().query
    ]
    sent = Sent()
    conforms = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]
    modes = list(schemathesis.GenerationMode)
    with requests.Session() as session:
        session.trust_env = False
        for operation in operations:
            for mode in modes:

                def send(case):
                    answer = case.call(base_url=url, session=session, headers=headers, timeout=60)
                    sent.statuses[answer.status_code] += 1
                    if answer.status_code >= 500:
                        sent.blame(f"{answer.status_code} for {case.as_curl_command(base_url=url)}")
                    try:
                        # a 413 is a rejection too, which that check does not know
                        rejects = [] if answer.status_code == 413 else [checks.negative_data_rejection]
                        case.validate_response(answer, checks=[*conforms, *rejects])
                    except FailureGroup as failure:
                        for what in map(str, failure.exceptions):
                            if "`maxItems`" not in what:  # that bound is ours, not the service's
                                sent.blame(f"{what} for {case.as_curl_command(base_url=url)}")

                drawing = settings(
                    max_examples=max(1, number // (len(operations) * len(modes))),
                    database=None,
                    deadline=None,
                    derandomize=False,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                seeded(seed)(drawing(given(operation.as_strategy(generation_mode=mode))(send)))()
    return sent


def send_raw(url, number, seed):
    """`number` connections that send bytes which are no HTTP; each is answered 4xx and closed."""
    draw, sent, address = random.Random(seed), Sent(), urlsplit(url)
    for _ in range(number):
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            content = draw.choice(RAW)
            try:
                connection.sendall(content)
                answer = connection.recv(65536)
            except ConnectionError:  # closed before all of it was sent, which is an answer too
                sent.statuses["closed"] += 1
                continue
        status = answer[9:12].decode("latin-1")
        sent.statuses[int(status) if status.isdigit() else "closed"] += 1
        if not answer.startswith(b"HTTP/1.1 4"):
            sent.blame(f"{answer[:60]!r} for the bytes {content[:60]!r}")
    return sent


def _with_short_lists(node):
    """A JSON schema in which every list that may not be empty is bounded: those are the lists of requests."""
    if isinstance(node, list):
        return [_with_short_lists(item) for item in node]
    if not isinstance(node, dict):
        return node
    schema = {key: _with_short_lists(item) for key, item in node.items()}
    if schema.get("minItems"):
        schema["maxItems"] = DRAWN_ITEMS
    return schema


@pytest.mark.timeout(1800)
def test_malformed_requests_get_an_error_of_their_own_and_leave_nothing_behind(small_environment):
    earlier = {child.pid for child in psutil.Process().children()}
    good = {"plans": [SearchPlan.of("triptan headache").model_dump()]}

    def storm(service, number, seed):
        sent = send_drawn(service.url, number, seed, service.headers)
        return sent + send_raw(service.url, max(8, number // 25), seed)

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
    assert {200, 400, 413, 422} <= sent.statuses.keys()
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
    """A 500, a body of another form and an undeclared status."""
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
            violations[name] = send_drawn(url, 6, 1).wrong
    assert all(violations.values()), violations
