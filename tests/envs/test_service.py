"""The HTTP service as any client sees it (a real uvicorn, a real index, real sockets), and what operators rely on."""

import asyncio
import json
import logging
import math
import re
import signal
import socket
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import EnvironmentClient, RetryClock, Step
from querylect.envs.plan import SearchPlan
from querylect.envs.server import app, batching, limits
from querylect.envs.server.app import create_app
from querylect.envs.server.serve import serve
from querylect.errors import UserError

from ..forked import Piped
from ..raising import refused
from ..waiting import until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def http(url):
    with httpx.Client(base_url=url) as client:
        yield client


def plan(text, **more):
    return SearchPlan.of(text, **more).model_dump()


def step(question_id, text, **more):
    return {"question_id": question_id, "plan": plan(text, **more)}


def weighed(*weights):
    """A plan of one probe that asks for headache with each weight."""
    return {"probes": [{"terms": [{"text": "headache", "weight": weight} for weight in weights]}]}


def search(url, *texts):
    body = {"plans": [plan(text) for text in texts]}
    return httpx.post(f"{url}/v1/search", json=body, trust_env=False, timeout=300)


def problem(answer, status):
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["title"]
    return body


def figures(url):
    """Every sample of /metrics by its name and labels."""
    answer = httpx.get(f"{url}/metrics", trust_env=False)
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_health_and_description(http, environment):
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ready"}
    assert http.get("/v1/environment").json() == environment.info().model_dump(mode="json")
    assert environment.info().splits == {"test": 3, "train": 1}


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


def test_a_body_or_an_answer_that_is_too_large_is_refused(http, url, monkeypatch):
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 2**20)
    with socket.create_connection((http.base_url.host, http.base_url.port), timeout=60) as raw:
        raw.sendall(f"POST /v1/search HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {2**20 + 1}\r\n\r\n".encode())
        declared = raw.recv(65536).decode()
    assert declared.startswith("HTTP/1.1 413 ")
    assert "application/problem+json" in declared
    chunks = (b" " * 2**16 for _ in range(2**4 + 1))
    problem(http.post("/v1/search", content=chunks, headers={"Content-Type": "application/json"}), 413)
    monkeypatch.setattr(app, "MAX_ANSWER_BYTES", 20)
    assert "with_text=false" in problem(search(url, "headache"), 413)["detail"]


def test_the_token_is_asked_for_and_checked(environment, run_app):
    with run_app(create_app(environment, token="sésame")) as url, httpx.Client(base_url=url) as http:
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
        assert http.get("/v1/environment").headers["www-authenticate"] == "Bearer"
        wrong = ["Bearer sesame", "Bearer sésam", "Bearer sésame2", "Bearer", "Basic sésame", "sésame"]
        for headers in [{}, *({"Authorization": value.encode()} for value in wrong)]:
            assert "Authorization: Bearer" in problem(http.get("/v1/openapi.json", headers=headers), 401)["detail"]
        right = {"Authorization": "Bearer sésame".encode()}
        assert http.get("/v1/environment", headers=right).status_code == 200
        page, script = http.get("/"), http.get("/page.js")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page.text)
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'"} <= set(re.split(r";\s*", policy))
    unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|localStorage|cookie"
    assert not re.search(unsafe, page.text + script.text)


def test_a_name_that_a_page_had_resolved_to_this_machine_reads_nothing(http):
    """DNS rebinding: the browser takes the page for the origin evil.example and shows it whatever is answered."""
    for host in ("evil.example", f"evil.example:{http.base_url.port}", "localhost.evil.example", "10.0.0.1", "0.0.0.0"):
        for path in ("/", "/healthz", "/v1/environment", "/v1/questions?split=test"):
            assert "QUERYLECT_TOKEN" in problem(http.get(path, headers={"Host": host}), 403)["detail"]
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:80", "127.1.2.3"):
        assert http.get("/v1/environment", headers={"Host": host}).status_code == 200


class BlockingEnvironment:
    """An environment whose searches wait until `free` is set, or fail."""

    def __init__(self, environment):
        self._environment = environment
        self.free = threading.Event()
        self.error = None

    def __getattr__(self, name):
        return getattr(self._environment, name)

    def rank(self, plans):
        assert self.free.wait(60)
        if self.error:
            raise self.error
        return self._environment.rank(plans)


@pytest.mark.parametrize("error", [ZeroDivisionError, StopIteration])
def test_a_failure_inside_is_a_500_without_its_trace(environment, run_app, caplog, error):
    failing = BlockingEnvironment(environment)
    failing.error = error("secret inside")
    failing.free.set()
    with run_app(create_app(failing)) as url:
        answer = search(url, "a")
        problem(answer, 500)
        assert "secret" not in answer.text
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


def test_figures_count_requests_and_plans_and_a_line_tells_of_each(environment, run_app, caplog):
    caplog.set_level(logging.INFO, "querylect.envs.server.limits")
    with run_app(create_app(environment)) as url:
        search(url, "headache", "blood", "headache")
        search(url, "headache", "scurvy")
        httpx.get(f"{url}/v1/nothing/secret-path")
        httpx.post(f"{url}/v1/search", json={"plans": []})
        metrics = figures(url)
    assert metrics['querylect_requests_total{route="/v1/search",status="200"}'] == 2
    assert metrics['querylect_requests_total{route="/v1/search",status="422"}'] == 1
    assert metrics['querylect_requests_total{route="none",status="404"}'] == 1
    assert metrics['querylect_request_seconds_count{route="/v1/search"}'] == 3
    assert metrics['querylect_plans_total{outcome="searched"}'] == 3
    assert metrics['querylect_plans_total{outcome="joined"}'] == 1
    assert metrics['querylect_plans_total{outcome="cached"}'] == 1
    assert (metrics["querylect_batch_plans_count"], metrics["querylect_batch_plans_sum"]) == (2, 3)
    assert metrics["querylect_queue_plans"] == 0
    assert not any("secret" in name or "headache" in name for name in metrics)
    line = next(record for record in caplog.records if record.name == "querylect.envs.server.limits")
    assert line.args[:3] == ("POST", "/v1/search", 200)
    assert "headache" not in caplog.text


SERVICE = textwrap.dedent(
    """
    import sys
    from querylect.configs.schema import EnvironmentConfig
    from querylect.envs.environment import Environment
    from querylect.envs.server.serve import serve

    real = Environment.rank
    def search(self, plans):
        if plans[0].probes[0].terms[0].text.startswith("slow"):
            print("searching", flush=True)
            sys.stdin.readline()
        return real(self, plans)
    Environment.rank = search
    serve(EnvironmentConfig.model_validate_json(sys.argv[1]), ready=lambda url: print(url, flush=True))
    print("ended", flush=True)
    """
)


@pytest.mark.slow
def test_a_signal_closes_the_port_and_lets_a_search_finish(small_environment, tmp_path):
    arguments = [small_environment.model_dump_json()]
    with ThreadPoolExecutor(1) as pool, Piped(arguments, tmp_path, code=SERVICE) as process:
        url = process.stdout.readline().strip()
        answer = pool.submit(search, url, "slow")
        assert process.stdout.readline() == "searching\n"
        process.send_signal(signal.SIGTERM)
        process.stdin.write("go on\n")
        assert answer.result(300).status_code == 200
        assert (process.stdout.readline(), process.wait(300)) == ("ended\n", 0)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/healthz", trust_env=False)


@pytest.mark.slow
def test_clients_in_a_storm_get_every_sample_scored_right_or_not_at_all(environment, run_app, monkeypatch):
    """Far more requests than may wait: every sample is scored or a failed search, and no 503 becomes a reward."""
    monkeypatch.setattr(batching, "MAX_PENDING", 1000)
    monkeypatch.setattr("querylect.envs.client.client.MAX_PLANS_PER_REQUEST", 4)
    words = ["headache", "blood", "glucose", "scurvy", "migraine"]
    steps = [Step(question_id="q-head", plan=SearchPlan.of(f"{word} {n}")) for n in range(8) for word in words]
    worth = [result.reward for result in environment.step(steps)]
    assert len(set(worth)) > 2
    blocking = BlockingEnvironment(environment)
    with run_app(create_app(blocking)) as url, ExitStack() as stack:
        settings, clock = ClientConfig(urls=[url], deadline=2400.0), RetryClock(sleep=lambda _: asyncio.sleep(0))
        clients = [stack.enter_context(EnvironmentClient(settings, clock=clock)) for _ in range(6)]
        storming = [client.start_step(steps) for client in clients]
        until(lambda: any(client.last_failure for client in clients))  # somebody has found the queue full
        blocking.free.set()
        outcomes = [future.result() for future in storming]
        metrics = figures(url)
    assert metrics['querylect_requests_total{route="/v1/step",status="503"}'] > 0
    assert [[result.reward for result in results] for results in outcomes] == [worth] * 6
