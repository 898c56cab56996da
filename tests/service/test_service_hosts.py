"""A service without a token answers programs of this machine and its own page, but no page of another site."""

import json
import socket
from urllib.parse import urlsplit

import httpx
import pytest
from querylect.envs.server.app import create_app


@pytest.fixture(scope="module")
def serving(environment, small_environment, run_app):
    """A function that gives the app of a service with its page, under a real server."""
    config = small_environment.model_copy(update={"playground": True})
    return lambda token: run_app(create_app(environment, config, token))


@pytest.fixture(scope="module")
def without_token(serving):
    with serving(None) as url:
        yield url


@pytest.fixture(scope="module")
def with_token(serving):
    with serving("s3cret") as url:
        yield url


def ask(url, path, **headers):
    """One GET with exactly these headers; "PORT" in a value is the service's port."""
    address = urlsplit(url)
    lines = [f"{name.replace('_', '-')}: {value.replace('PORT', str(address.port))}" for name, value in headers.items()]
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall("\r\n".join([f"GET {path} HTTP/1.1", *lines, "Connection: close", "", ""]).encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head[9:12]), head, body


PRIVATE = ["/", "/healthz", "/v1/environment", "/v1/questions?split=test", "/page/judgements?question_id=q-head"]


@pytest.mark.parametrize("path", PRIVATE)
@pytest.mark.parametrize(
    "host",
    ["evil.example:PORT", "localhost.evil.example", "10.0.0.1:PORT", "0.0.0.0:PORT", "", "127.0.0.1@evil", "[::]"],
)
def test_a_name_that_a_page_had_resolved_to_this_machine_reads_nothing(without_token, host, path):
    """DNS rebinding: the browser takes the page for the origin evil.example and shows it whatever is answered."""
    status, head, body = ask(without_token, path, Host=host)
    assert status == 421
    assert b"application/problem+json" in head
    problem = json.loads(body)
    assert problem["status"] == 421
    assert "QUERYLECT_TOKEN" in problem["detail"]


def test_a_request_without_a_host_or_with_two_is_refused(without_token):
    assert ask(without_token, "/v1/environment")[0] == 421
    assert ask(without_token, "/v1/environment", Host="localhost", host="evil.example")[0] in (400, 421)


@pytest.mark.parametrize("host", ["localhost:PORT", "LOCALHOST", "127.0.0.1:PORT", "127.8.9.1", "[::1]:PORT", "[::1]"])
def test_every_loopback_host_is_answered(without_token, host):
    assert [ask(without_token, path, Host=host)[0] for path in PRIVATE] == [200] * len(PRIVATE)


@pytest.mark.parametrize(
    "browser",
    [
        {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"},
        {"Origin": "http://localhost:1", "Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_page_of_another_origin_starts_no_work(without_token, browser):
    for path in PRIVATE[2:]:
        status, head, body = ask(without_token, path, Host="localhost:PORT", **browser)
        assert status == 403
        assert b"application/problem+json" in head
        assert "another origin" in json.loads(body)["detail"]
    assert ask(without_token, "/", Host="localhost:PORT", **browser)[0] == 200, "a link to the page leads there"
    assert b"access-control" not in head.lower()


@pytest.mark.parametrize(
    "browser",
    [
        {"Origin": "http://localhost:PORT", "Sec_Fetch_Site": "same-origin"},
        {"Origin": "http://localhost:PORT"},
        {"Sec_Fetch_Site": "none"},
    ],
)
def test_its_own_page_is_answered(without_token, browser):
    for path in PRIVATE:
        assert ask(without_token, path, Host="localhost:PORT", **browser)[0] == 200


def test_with_a_token_any_name_may_lead_to_the_service(with_token):
    token = {"Authorization": "Bearer s3cret"}
    behind_a_proxy = {"Host": "search.example", "Origin": "https://search.example", **token}
    assert ask(with_token, "/v1/environment", **behind_a_proxy)[0] == 200
    assert ask(with_token, "/v1/environment", Host="evil.example")[0] == 401


def test_a_client_that_asks_by_another_name_is_told_what_to_do(without_token):
    answer = httpx.get(f"{without_token}/v1/environment", headers={"Host": "node-b:8765"}, trust_env=False)
    assert (answer.status_code, answer.json()["title"]) == (421, "Misdirected Request")
    assert "node-b:8765" in answer.json()["detail"]
