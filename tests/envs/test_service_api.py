"""The HTTP service as any client sees it: a real uvicorn, a real index, real sockets."""

import json
import math
import socket
import threading

import httpx
import pytest
from querylect.envs.plan import SearchPlan
from querylect.envs.server import limits
from querylect.envs.server.app import create_app
from querylect.envs.server.serve import serve
from querylect.errors import UserError

from ..raising import refused

pytestmark = pytest.mark.server

MAX_BODY_BYTES = 2**20


@pytest.fixture(scope="module")
def http(environment, small_environment, run_app):
    with run_app(create_app(environment)) as url, httpx.Client(base_url=url) as client:
        yield client


def plan(text, **more):
    return SearchPlan.of(text, **more).model_dump()


def step(question_id, text, **more):
    return {"question_id": question_id, "plan": plan(text, **more)}


def weighed(*weights):
    """A plan of one probe that asks for headache with each weight."""
    return {"probes": [{"terms": [{"text": "headache", "weight": weight} for weight in weights]}]}


def problem(answer, status):
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["title"]
    return body


def test_health_and_description(http, environment):
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ready"}
    description = http.get("/v1/environment").json()
    assert (description["corpus_size"], description["corpus_hash"]) == (6, environment.info().corpus_hash)
    assert (description["index_hash"], description["retriever"]) == (
        environment.info().index_hash,
        environment.info().retriever,
    )
    assert description["splits"] == {"test": 3, "train": 1}


def test_a_step_is_worth_its_ndcg(http):
    body = {
        "steps": [step("q-head", "aspirin headache"), step("q-head", "triptan headache"), step("q-sugar", "scurvy")],
        "metrics": ["recall@1", "mrr@10"],
    }
    results = http.post("/v1/step", json=body).json()["results"]
    assert [hit["id"] for hit in results[0]["ranking"]] == ["aspirin", "triptan"]
    second = 1 / math.log2(3)
    assert results[0]["reward"] == pytest.approx((1 + 2 * second) / (2 + second), abs=1e-12)
    assert [result["reward"] for result in results[1:]] == [1.0, 0.0]
    assert results[0]["metrics"] == {"ndcg@10": results[0]["reward"], "recall@1": 0.5, "mrr@10": 1.0}
    assert set(results[0]["ranking"][0]) == {"id", "score"}
    assert all(result["hits"] is result["error"] is None for result in results)


def test_no_answer_shows_a_judgement(http):
    answers = [
        http.get("/v1/environment"),
        http.get("/v1/questions", params={"split": "test"}),
        http.post("/v1/step", json={"steps": [step("q-hidden", "headache blood")], "with_text": True}),
        http.get("/v1/openapi.json"),
    ]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert not any("withheld-judgement" in answer.text or "qrel" in answer.text.lower() for answer in answers)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "/v1/nothing", None, 404, "Not Found"),
        ("GET", "/v1/step", None, 405, "Method Not Allowed"),
        ("GET", "/v1/questions?split=dev", None, 422, "dev"),
        ("GET", "/v1/questions?split=test&limit=0", None, 422, "query.limit"),
        ("POST", "/v1/search", {"plans": [plan("a", k=2**18)]}, 413, f"{2**21 + 257}"),
        ("POST", "/v1/search", {"plans": [plan("a" * (2**21 - 336)), plan("a", k=1)]}, 413, f"{2**21 + 265}"),
        ("POST", "/v1/search", {"plans": [weighed(*[1.0] * 8000)]}, 413, f"{8000 * 264 + 80}"),
        ("POST", "/v1/search", {"plans": [plan("a") | {"mode": "native"}]}, 422, "native"),
        ("POST", "/v1/search", {"plans": [plan("a")], "with_txt": True}, 422, "body.with_txt"),
        ("POST", "/v1/search", {"plans": [{"probes": [{"terms": [{"text": "a"}], "source": "x"}]}]}, 422, "source"),
        ("POST", "/v1/step", {"steps": [step("q-head", "a"), step("nobody", "a")]}, 422, "'nobody'"),
        ("POST", "/v1/step", {"steps": [step("q-head", "a")], "metrics": ["fame@3"]}, 422, "fame@3"),
    ],
)
def test_a_wrong_request_is_told_what_to_correct(http, method, path, body, status, says):
    assert says in json.dumps(problem(http.request(method, path, json=body), status), ensure_ascii=False)


@pytest.mark.parametrize(
    "content",
    [
        b'{"plans": [',
        b"\xff\xfe",
        b'{"plans": [{"probes": [{"terms": [{"text": "\\ud800"}]}]}]}',
        b'{"plans": [{"probes": [{"terms": [{"text": "a", "weight": NaN}]}]}]}',
    ],
)
def test_bytes_that_are_no_request_are_a_client_error(http, content):
    answer = http.post("/v1/search", content=content, headers={"Content-Type": "application/json"})
    assert problem(answer, answer.status_code)["status"] in (400, 422)


def test_a_body_that_is_too_large_is_refused_declared_or_not(http, monkeypatch):
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", MAX_BODY_BYTES)
    with socket.create_connection((http.base_url.host, http.base_url.port), timeout=60) as raw:
        raw.sendall(f"POST /v1/search HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode())
        declared = raw.recv(65536).decode()
    assert declared.startswith("HTTP/1.1 413 ")
    assert "application/problem+json" in declared

    def chunks():
        for _ in range(MAX_BODY_BYTES // 2**16 + 1):
            yield b" " * 2**16

    answer = http.post("/v1/search", content=chunks(), headers={"Content-Type": "application/json"})
    problem(answer, 413)


def test_the_token_is_asked_for_and_checked(environment, small_environment, run_app):
    with run_app(create_app(environment, token="sésame")) as url, httpx.Client(base_url=url) as http:
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
        assert http.get("/v1/environment").headers["www-authenticate"] == "Bearer"
        wrong = ["Bearer sesame", "Bearer sésam", "Bearer sésame2", "Bearer", "Basic sésame", "sésame"]
        for headers in [{}, *({"Authorization": value.encode()} for value in wrong)]:
            assert "Authorization: Bearer" in problem(http.get("/v1/openapi.json", headers=headers), 401)["detail"]
        right = {"Authorization": "Bearer sésame".encode()}
        assert http.get("/v1/environment", headers=right).status_code == 200


class BlockingEnvironment:
    """An environment whose searches wait until `free` is set, or fail."""

    def __init__(self, environment):
        self._environment = environment
        self.free = threading.Event()
        self.entered = threading.Event()
        self.batches = []
        self.error = None

    def __getattr__(self, name):
        return getattr(self._environment, name)

    def rank(self, plans):
        self.batches.append(len(plans))
        self.entered.set()
        assert self.free.wait(60)
        if self.error:
            raise self.error
        return self._environment.rank(plans)


@pytest.fixture
def blocking(environment):
    blocking = BlockingEnvironment(environment)
    yield blocking
    blocking.free.set()


def test_a_failure_inside_is_a_500_without_its_trace(blocking, small_environment, run_app, caplog):
    blocking.error = ZeroDivisionError("secret inside")
    blocking.free.set()
    with run_app(create_app(blocking)) as url:
        answer = httpx.post(f"{url}/v1/search", json={"plans": [plan("a")]})
        problem(answer, 500)
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text
        assert httpx.get(f"{url}/readyz").status_code == 200
    assert "secret inside" in caplog.text


def test_an_address_that_cannot_be_served_is_refused(small_environment, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit):
            serve(small_environment.model_copy(update={"port": port}))
    assert "already in use" in caplog.text
    with refused(UserError, "'0.0.0.0'", "QUERYLECT_TOKEN"):
        serve(small_environment.model_copy(update={"host": "0.0.0.0"}))
