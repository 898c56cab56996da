"""A service without a token answers programs of this machine and its own page, but no page of another site."""

import json
import socket
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.server


def ask(url, path, **headers):
    """One GET with exactly these headers; "PORT" in a value is the service's port."""
    address = urlsplit(url)
    lines = [f"{name.replace('_', '-')}: {value.replace('PORT', str(address.port))}" for name, value in headers.items()]
    with socket.create_connection((address.hostname, address.port), timeout=300) as connection:
        connection.sendall("\r\n".join([f"GET {path} HTTP/1.1", *lines, "Connection: close", "", ""]).encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head[9:12]), head, body


PATHS = ["/", "/healthz", "/v1/environment", "/v1/questions?split=test"]


def test_a_name_that_a_page_had_resolved_to_this_machine_reads_nothing(url):
    """DNS rebinding: the browser takes the page for the origin evil.example and shows it whatever is answered."""
    for host in ("evil.example:PORT", "localhost.evil.example", "10.0.0.1:PORT", "0.0.0.0", ""):
        for path in PATHS:
            status, head, body = ask(url, path, Host=host)
            assert (status, b"application/problem+json" in head) == (403, True), host
            assert "QUERYLECT_TOKEN" in json.loads(body)["detail"]
    assert ask(url, "/v1/environment")[0] == 403
    assert ask(url, "/v1/environment", Host="localhost", host="evil.example")[0] in (400, 403)
