"""Requests that mean nothing: refused every time, and the service is what it was before.

The number of requests is that of QUERYLECT_REQUESTS (600 where unset); 10000 is the soak. They are drawn from a seed:
valid bodies that were damaged, bodies of any JSON, bytes, wrong methods, paths, parameters and headers.
"""

import copy
import json
import os
import random
import socket

import httpx
import psutil
import pytest
from querylect.configs.schema import EnvironmentConfig
from querylect.envs.local import local_service
from querylect.envs.plan import SearchPlan

REQUESTS = int(os.environ.get("QUERYLECT_REQUESTS", "600"))
PATHS = ["/v1/search", "/v1/step", "/v1/questions", "/v1/environment", "/healthz", "/readyz", "/v1/none", "/", "/v1/"]
ODD_VALUES = [
    None, True, -1, 0, 2**63, 10**400, 1e308, -1e-320, "", "a", "\x00", "é" * 50, "\ud800", "NaN", [], {}, [[]],
    {"probes": []}, [None], {"": {}}, "a" * 5000, float("nan"), float("inf"), "rrf", "interleave",
]  # fmt: skip


def valid(draw):
    plan = SearchPlan.of(draw.choice(["headache", "", "blood " * 9]), k=draw.choice([1, 10])).model_dump(mode="json")
    if draw.random() < 0.5:
        return "/v1/search", {"plans": [plan] * draw.randint(1, 3), "with_text": True}
    steps = [{"question_id": "q-head", "plan": plan}] * draw.randint(1, 3)
    return "/v1/step", {"steps": steps, "with_text": False, "metrics": ["recall@1"]}


def damaged(draw, value):
    """The value with one place of it, at any depth, replaced, removed, added or doubled."""
    value = copy.deepcopy(value)
    place = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw.choice(keys) if keys else None
        inner = None if key is None else place[key]
        if isinstance(inner, (dict, list)) and inner and draw.random() < 0.8:
            place = inner
            continue
        how = draw.randrange(4)
        if key is None or how == 0:
            if isinstance(place, dict):
                place[draw.choice(["x", "k", "", "weight", "source", "plans"])] = draw.choice(ODD_VALUES)
            else:
                place.append(draw.choice(ODD_VALUES))
        elif how == 1:
            del place[key]
        else:
            place[key] = draw.choice(ODD_VALUES)
        return value


def request_of(draw):
    """Method, path, headers and body of one request."""
    kind = draw.randrange(6)
    path, body = valid(draw)
    headers = {"Content-Type": "application/json"}
    if kind <= 2:
        for _ in range(draw.randint(1, 3)):
            body = damaged(draw, body)
        return "POST", path, headers, json.dumps(body).encode("utf-8", "surrogatepass")
    if kind == 3:
        cut = json.dumps(body).encode()
        return "POST", path, headers, cut[: draw.randrange(len(cut))] + draw.randbytes(draw.randrange(20))
    if kind == 4:
        query = f"?split={draw.choice(['test', '%00', 'a' * 3000, '%ff'])}&limit={draw.choice(['-1', '1e9', '٣', ''])}"
        return draw.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS"]), draw.choice(PATHS) + query, {}, b""
    odd = {
        "Content-Type": draw.choice(["text/plain", "", "application/json; charset=utf-16", "multipart/form-data"]),
        "X-Request-ID": draw.choice(["a b", "x" * 500, "{}", "ok-1"]),
        "Authorization": draw.choice(["Bearer", "Bearer x y", "Basic !!"]),
    }
    return draw.choice(["POST", "GET"]), draw.choice(PATHS), odd, json.dumps(body).encode()


RAW = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET /nothing HTTP/9.9\r\nHost: x\r\n\r\n",
    b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    b"POST /v1/search HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /nothing HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 20_000 + b"\r\n",
]


@pytest.mark.timeout(1800)
def test_malformed_requests_get_an_error_of_their_own_and_leave_nothing_behind(small_environment):
    config = EnvironmentConfig.model_validate({**small_environment.model_dump(), "cache_bytes": 100_000})
    before = {child.pid for child in psutil.Process().children()}
    draw = random.Random(7)
    seen, memory = {}, []
    with local_service(config) as url, httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
        (service,) = [child for child in psutil.Process().children() if child.pid not in before]
        good = {"plans": [SearchPlan.of("triptan headache").model_dump()]}
        expected = http.post("/v1/search", json=good).json()
        host, port = url.removeprefix("http://").split(":")
        for number in range(REQUESTS):
            method, path, headers, body = request_of(draw)
            answer = http.request(method, path, content=body, headers=headers)
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (method, path, headers, body, answer.text)
            if answer.status_code >= 400:
                assert answer.headers["content-type"] == "application/problem+json", (method, path, body)
                assert answer.json()["detail"]
            if number % 50 == 0:
                with socket.create_connection((host, int(port)), timeout=10) as raw:
                    raw.sendall(draw.choice(RAW))
                    assert raw.recv(65536)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 431")
            if number in (REQUESTS // 2, REQUESTS - 1):
                memory.append(service.memory_info().rss)
        assert http.post("/v1/search", json=good).json() == expected
        connections = service.net_connections()
    print(f"{REQUESTS} requests: {seen}; resident {memory[0]} bytes after half of them, {memory[1]} at the end")
    assert {200, 404, 405, 422} <= seen.keys()
    assert memory[1] <= 1.05 * memory[0]
    assert len(connections) < 10
