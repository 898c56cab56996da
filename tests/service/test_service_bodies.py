"""Requests that are too large, sent to a real service: refused before parsing, without delaying others."""

import json
import socket
from functools import partial

import httpx
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import SyncEnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.server.app import create_app
from querylect.envs.server.bodies import OPEN_REQUESTS
from querylect.envs.wire import limits_of
from querylect.inference.rewriter import Rewriter
from querylect.inference.server import MAX_QUESTIONS, PageWriter, mount

from ..used import trained_run  # noqa: F401 (fixtures)

JSON = {"Content-Type": "application/json"}


def test_no_call_reads_the_items_of_an_endless_list(trained_run, lessons, run_app):  # noqa: F811
    """Parsing an item would give 422."""
    rewriter = Rewriter.from_pretrained(trained_run[1])
    app = create_app(Environment.open(lessons), lessons, None, PageWriter(rewriter), partial(mount, rewriter=rewriter))
    lists = {
        "/v1/search": "plans",
        "/v1/step": "steps",
        "/v1/rewrite": "questions",
        "/v1/ask": "questions",
        "/page/rewrite": "options",
    }
    with run_app(app) as url, httpx.Client(base_url=url) as http:
        assert {path for path, methods in app.openapi()["paths"].items() if "post" in methods} <= lists.keys()
        for path, name in lists.items():
            short_body, long_body = (json.dumps({name: [{}] * count}) for count in (3, 200_000))
            assert http.post(path, content=short_body, headers=JSON).status_code == 422
            answer = http.post(path, content=long_body, headers=JSON)
            assert (answer.status_code, answer.json()["status"]) == (413, 413)
            assert len(answer.content) < 1000


def test_too_many_items_are_refused_before_the_body_has_arrived(small_environment, run_app):
    config = small_environment.model_copy(update={"read_seconds": 600.0})
    head = (
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    body = b'{"plans": [' + b",".join([b"{}"] * 100_000)
    with run_app(create_app(Environment.open(config), config)) as url:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port), timeout=60) as connection:
            connection.sendall(head % (len(body) + 10_000) + body)
            answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer


def test_bodies_that_hold_all_memory_are_a_503_for_others_until_they_are_gone(small_environment, run_app):
    limits = {"max_body_bytes": 2**16, "max_plans": 40, "max_request_terms": 40}
    config = small_environment.model_copy(update={"read_seconds": 600.0, **limits})
    head = (
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    body = json.dumps({"plans": [SearchPlan.of("headache").model_dump()] * 40})

    def until(http, status):
        while (answer := http.post("/v1/search", content=body, headers=JSON)).status_code != status:
            assert answer.status_code in (200, 503)
        return answer

    with run_app(create_app(Environment.open(config), config)) as url, httpx.Client(base_url=url) as http:
        address = (http.base_url.host, http.base_url.port)
        holding = [socket.create_connection(address, timeout=60) for _ in range(OPEN_REQUESTS)]
        for connection in holding:
            connection.sendall(head % 2**16 + b"[" * limits_of(config).max_entries + b" " * 60_000)
        refused = until(http, 503)
        assert int(refused.headers["retry-after"]) >= 1
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
        for connection in holding:
            connection.close()
        until(http, 200)


def test_nesting_is_refused(small_environment, run_app):
    with run_app(create_app(Environment.open(small_environment), small_environment)) as url:
        for depth, statuses in ((10**4, (400, 422)), (10**6, (413,))):
            answer = httpx.post(f"{url}/v1/search", content=b'{"plans": ' + b"[" * depth, headers=JSON)
            assert answer.status_code in statuses


def test_the_texts_of_all_plans_are_bounded_together(small_environment, run_app):
    config = small_environment.model_copy(update={"max_request_terms": 6})
    plans = [SearchPlan(probes=(Probe(terms=(Term(text="headache"), Term(text=f"blood {n}"))),)) for n in range(10)]
    with run_app(create_app(Environment.open(config), config)) as url:
        refused = httpx.post(f"{url}/v1/search", json={"plans": [plan.model_dump() for plan in plans[:4]]})
        assert (refused.status_code, "8 texts together; at most 6" in refused.json()["detail"]) == (413, True)
        with SyncEnvironmentClient(ClientConfig(urls=[url])) as client:
            rankings = client.search(plans)
    assert [len(ranking) for ranking in rankings] == [4] * 10, "the client sends them in parts that are taken"


def test_the_document_states_the_limits_of_this_service(trained_run, lessons):  # noqa: F811
    changes = {"max_plans": 7, "max_terms": 5, "max_characters": 900}
    config = lessons.model_copy(update=changes)
    mounted = partial(mount, rewriter=Rewriter.from_pretrained(trained_run[1]))
    for extend in (None, mounted):
        schemas = create_app(Environment.open(config), config, extend=extend).openapi()["components"]["schemas"]
        stated = {
            (model.removesuffix("-Input"), name): field | next(iter(field.get("anyOf", [])), {})
            for model, schema in schemas.items()
            for name, field in schema.get("properties", {}).items()
        }
        for model, name in (("SearchRequest", "plans"), ("StepRequest", "steps")):
            assert stated[model, name]["maxItems"] == 7
        for model, name in (("SearchPlan", "probes"), ("Probe", "terms")):
            assert stated[model, name]["maxItems"] == 5
        for model in ("SearchPlan", "Probe"):
            assert stated[model, "k"]["maximum"] == 1000
        assert stated["Term", "text"]["maxLength"] == 900
    for model in ("RewriteRequest", "AskRequest"):
        assert schemas[model]["properties"]["questions"]["maxItems"] == MAX_QUESTIONS
