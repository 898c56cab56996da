"""Malformed requests, sent to a running service, and what must hold for every answer.

Three sources: schemathesis draws from the service's own OpenAPI document what fits it and what does not; `damaged`
takes valid bodies and breaks them in one to three places, sends wrong methods, paths, parameters and headers; `RAW` is
bytes that are no HTTP. All are drawn from a seed. An answer keeps its promise where its status and body are declared
in that document, and an error is problem+json that says what to do and no 5xx.
"""

import copy
import json
import random
import socket
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import Problem

PATHS = ["/v1/search", "/v1/step", "/v1/questions", "/v1/environment", "/healthz", "/readyz", "/v1/none", "/", "/v1/"]
ODD_VALUES = [
    None, True, -1, 0, 2**63, 10**400, 1e308, -1e-320, "", "a", "\x00", "é" * 50, "\ud800", "NaN", [], {}, [[]],
    {"probes": []}, [None], {"": {}}, "a" * 5000, float("nan"), float("inf"), "rrf", "interleave",
]  # fmt: skip
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


def document_of(url, headers=None):
    """The service's own OpenAPI document."""
    return httpx.get(f"{url}/v1/openapi.json", headers=headers, trust_env=False, timeout=60).json()


def send_drawn(url, number, seed, headers=None):
    """About `number` requests that schemathesis draws from the service's document, half of them against it."""
    import requests
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from schemathesis.core.failures import FailureGroup
    from schemathesis.specs.openapi import checks

    document = document_of(url, headers)
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


def send_damaged(url, number, seed, headers=None):
    """`number` requests that were valid before they were broken."""
    draw, sent, document = random.Random(seed), Sent(), document_of(url, headers)
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as http:
        for _ in range(number):
            method, path, more, body = damaged(draw)
            answer = http.request(method, path, content=body, headers=more)
            sent.statuses[answer.status_code] += 1
            if (what := _broken_promise(document, answer)) is not None:
                sent.blame(f"{what}: {method} {path} {more} {body[:500]!r} was answered {answer.text[:300]}")
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


def damaged(draw):
    """Method, path, headers and body of one request."""
    kind = draw.randrange(6)
    path, body = _valid(draw)
    headers = {"Content-Type": "application/json"}
    if kind <= 2:
        for _ in range(draw.randint(1, 3)):
            body = _broken(draw, body)
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
        "Accept": draw.choice(["", "text/html", "*/*;q=x"]),
    }
    return draw.choice(["POST", "GET"]), draw.choice(PATHS), odd, json.dumps(body).encode()


def _valid(draw):
    plan = SearchPlan.of(draw.choice(["headache", "", "blood " * 9]), k=draw.choice([1, 10])).model_dump(mode="json")
    if draw.random() < 0.5:
        return "/v1/search", {"plans": [plan] * draw.randint(1, 3), "with_text": True}
    steps = [{"question_id": "q-head", "plan": plan}] * draw.randint(1, 3)
    return "/v1/step", {"steps": steps, "with_text": False, "metrics": ["recall@1"]}


def _broken(draw, value):
    """The value with one entry, at any depth, replaced, removed or added."""
    value = copy.deepcopy(value)
    container = value
    while True:
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        key = draw.choice(keys) if keys else None
        inner = None if key is None else container[key]
        if isinstance(inner, (dict, list)) and inner and draw.random() < 0.8:
            container = inner
            continue
        how = draw.randrange(4)
        if key is None or how == 0:
            if isinstance(container, dict):
                container[draw.choice(["x", "k", "", "weight", "source", "plans"])] = draw.choice(ODD_VALUES)
            else:
                container.append(draw.choice(ODD_VALUES))
        elif how == 1:
            del container[key]
        else:
            container[key] = draw.choice(ODD_VALUES)
        return value


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


def _broken_promise(document, answer):
    """What an answer does wrong, or None."""
    status, path = answer.status_code, answer.request.url.path
    if status >= 500:
        return f"a {status}"
    operation = document["paths"].get(path, {}).get(answer.request.method.lower())
    if operation is not None and str(status) not in operation["responses"]:
        return f"an undeclared {status}"
    if status < 400:
        return None
    if answer.headers["content-type"] != "application/problem+json":
        return "an error that is no problem+json"
    problem = Problem.model_validate_json(answer.content)
    if problem.status != status or not problem.detail:
        return "a problem that does not say what it is"
    return None
