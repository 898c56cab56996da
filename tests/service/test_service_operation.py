"""What an operator relies on: figures, log lines, limits, slow senders, draining, and workers behind one port."""

import asyncio
import errno
import json
import logging
import os
import re
import shutil
import signal
import socket
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import httpx
import psutil
import pytest
from querylect.configs.schema import ClientConfig, EnvironmentConfig
from querylect.envs.client.client import EnvironmentClient, Step
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.server import process as serving
from querylect.envs.server.app import create_app
from querylect.envs.server.process import MAX_HEAD_BYTES, Server, bound
from querylect.envs.server.serve import serve
from querylect.errors import IndexFolderError

from ..forked import Piped, fork_server, instead_of_spawn
from ..raising import refused
from .test_service_api import BlockingEnvironment

POST = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def plan(text, **more):
    return SearchPlan.of(text, **more).model_dump()


def search(url, *texts, **more):
    return httpx.post(f"{url}/v1/search", json={"plans": [plan(text) for text in texts]}, trust_env=False, **more)


def figures(url):
    """Every sample of /metrics by its name and labels."""
    answer = httpx.get(f"{url}/metrics", trust_env=False)
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_figures_count_requests_plans_batches_and_both_sides_of_the_cache(environment, small_environment, run_app):
    with run_app(create_app(environment, small_environment)) as url:
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
    assert metrics['querylect_cache_lookups_total{cache="rankings",result="hit"}'] == 1
    assert metrics['querylect_cache_lookups_total{cache="rankings",result="miss"}'] == 3
    assert metrics['querylect_cache_entries{cache="rankings"}'] == 3
    assert metrics['querylect_cache_bytes{cache="rankings"}'] > 3 * 200
    assert (metrics["querylect_batch_plans_count"], metrics["querylect_batch_plans_sum"]) == (2, 3)
    assert (metrics["querylect_queue_plans"], metrics["querylect_ready"]) == (0, 1)
    assert not any("secret" in name or "headache" in name for name in metrics)


@pytest.mark.parametrize(("level", "with_texts"), [("none", None), ("requests", False), ("texts", True)])
def test_a_line_per_request_says_what_was_asked_only_where_that_is_wanted(
    environment, small_environment, run_app, caplog, level, with_texts
):
    config = small_environment.model_copy(update={"log": level})
    caplog.set_level(logging.INFO, "querylect.envs.requests")
    with run_app(create_app(environment, config)) as url:
        search(url, "private headache", headers={"X-Request-ID": "r-1"})
    lines = [json.loads(record.message) for record in caplog.records if record.name == "querylect.envs.requests"]
    if with_texts is None:
        assert lines == []
        return
    (line,) = lines
    assert (line["request_id"], line["method"], line["path"], line["status"]) == ("r-1", "POST", "/v1/search", 200)
    assert (line["plans"], line["bytes"] > 0, line["seconds"] > 0) == (1, True, True)
    assert line.get("texts") == ([["private headache"]] if with_texts else None)
    assert ("private" in caplog.text) == with_texts


def test_a_request_that_is_too_large_is_refused(environment, small_environment, run_app):
    config = small_environment.model_copy(update={"max_terms": 4, "max_characters": 60})
    short_probe = Probe(terms=(Term(text="a"),))
    with run_app(create_app(environment, config)) as url:
        limits = httpx.get(f"{url}/v1/environment").json()["limits"]
        for plans, says in (
            ([SearchPlan(probes=(Probe(terms=short_probe.terms * 5),))], "5 texts; at most 4"),
            ([SearchPlan(probes=(short_probe,) * 5)], "5 texts; at most 4"),
            (
                [SearchPlan(probes=(Probe(terms=(Term(text="a" * 30), Term(text="a" * 31))),))],
                "61 characters; at most 60",
            ),
            ([SearchPlan.of("a", k=1000)] * 263, "263000 documents together; at most 262144"),
        ):
            answer = httpx.post(f"{url}/v1/search", json={"plans": [single.model_dump() for single in plans]})
            assert answer.status_code == 413
            assert says in answer.json()["detail"]
    assert (limits["max_terms"], limits["max_characters"]) == (4, 60)


@contextmanager
def _served(environment, config):
    """The address of a service under its own server in a thread."""
    server = Server(create_app(environment, config), config)
    with bound("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        yield listener.getsockname()
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def impatient(environment, small_environment):
    """Host and port of a service that waits half a second for a request."""
    with _served(environment, small_environment.model_copy(update={"read_seconds": 0.5})) as address:
        yield address


@pytest.fixture(scope="module")
def patient(environment, small_environment):
    """The same with the time that a busy machine needs, also for a client to read why it was refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "LINGER_SECONDS", 600.0)
        with _served(environment, small_environment.model_copy(update={"read_seconds": 600.0})) as address:
            yield address


def received(connection):
    """All bytes that the service sends until it closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_a_body_that_trickles_has_no_more_time_than_one_that_stops(impatient):
    with socket.create_connection(impatient, timeout=0.1) as sender:
        sender.sendall(b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n")
        answer, sent = b"", 0
        while not answer and sent < 100:
            sender.sendall(b" ")
            sent += 1
            with suppress(TimeoutError):
                answer = sender.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within 0.5 s" in answer


def test_a_body_that_never_ends_is_a_408_and_holds_nothing(impatient):
    host, port = impatient
    head = POST + b"Content-Length: 900\r\n\r\n"
    senders = [socket.create_connection((host, port), timeout=60) for _ in range(20)]
    for sender in senders:
        sender.sendall(head + b'{"plans": [')
    assert search(f"http://{host}:{port}", "headache").status_code == 200
    for sender in senders:
        answer = received(sender)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive within 0.5 s (11 bytes did)" in answer
        sender.close()
    assert figures(f"http://{host}:{port}")["querylect_requests_under_way"] == 1, "only the one that asks"


@pytest.mark.parametrize("sent", [b"", b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_head_that_never_ends_is_closed(impatient, sent):
    host, port = impatient
    with socket.create_connection((host, port), timeout=60) as sender:
        sender.sendall(sent)
        assert received(sender) == b""


LONG_HEADS = {
    "one header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 70_000,
    "many headers": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 8750,
    "a header's name": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"x" * 70_000 + b": b",
    "blanks": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long:" + b" " * 70_000 + b"x",
    "the request line": b"GET /healthz?" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost",
    "lines before it": b"\r\n" * 35_000 + b"GET /healthz HTTP/1.1\r\nHost: localhost",
}


@pytest.mark.parametrize("piece", [10**6, 997])
@pytest.mark.parametrize("part", LONG_HEADS)
def test_a_head_that_is_too_long_is_a_431_and_the_connection_closes(patient, part, piece):
    """However it arrives, also with its end in the same segment."""
    sent = LONG_HEADS[part] + b"\r\n\r\n"
    with socket.create_connection(patient, timeout=60) as sender:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):
            for start in range(0, len(sent), piece):
                sender.sendall(sent[start : start + piece])
        head, _, body = received(sender).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"\r\nconnection: close" in head.lower()
    assert b"application/problem+json" in head
    assert f"may have {MAX_HEAD_BYTES} bytes" in json.loads(body)["detail"]


def test_a_client_that_goes_on_sending_reads_why_its_head_was_refused(patient):
    with socket.create_connection(patient, timeout=60) as sender:
        sender.sendall(LONG_HEADS["one header"])
        for _ in range(5):
            time.sleep(0.05)
            sender.sendall(b"x" * 1000)
        assert received(sender).startswith(b"HTTP/1.1 431 ")


def test_a_client_that_never_stops_sending_a_head_is_cut_off(patient, monkeypatch):
    monkeypatch.setattr(serving, "LINGER_SECONDS", 0.5)

    def send_on(sender):
        until = time.monotonic() + 60
        sender.sendall(LONG_HEADS["one header"])
        while time.monotonic() < until:
            sender.sendall(b"x" * 10_000)
            time.sleep(0.02)

    with socket.create_connection(patient, timeout=60) as sender, pytest.raises(ConnectionError):
        send_on(sender)


def test_a_head_is_held_to_its_limit_in_every_request_of_a_connection(patient):
    short = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    almost = short[:-2] + b"X-Long: " + b"x" * (MAX_HEAD_BYTES - len(short) - 10) + b"\r\n\r\n"
    assert len(almost) == MAX_HEAD_BYTES
    with socket.create_connection(patient, timeout=60) as sender:
        for request in (short, almost, almost):
            sender.sendall(request)
            answer = b""
            while b'{"status":"ok"}' not in answer:
                part = sender.recv(65536)
                assert part
                answer += part
            assert answer.startswith(b"HTTP/1.1 200 ")
        sender.sendall(almost.replace(b"X-Long", b"X-Longer"))
        assert received(sender).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("endless", [b"1;" + b"x" * 10**6, b"0\r\nX-Trailer: " + b"x" * 10**6])
def test_what_is_no_part_of_a_chunked_body_is_no_longer_than_a_head(patient, endless):
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(patient, timeout=60) as sender:
        with suppress(ConnectionError):
            sender.sendall(head + endless)
        sender.settimeout(60)  # well before the time for a body is over
        with suppress(ConnectionError):
            assert received(sender) == b""


def test_a_short_head_before_a_long_body_and_a_second_request_are_taken(patient):
    host, port = patient
    body = json.dumps({"plans": [plan("headache", k=1)] * 2000}).encode()
    head = POST + f"Content-Length: {len(body)}\r\n\r\n".encode()
    assert len(body) > MAX_HEAD_BYTES
    with socket.create_connection((host, port), timeout=60) as sender:
        for _ in range(2):
            sender.sendall(head + body)
            answer = sender.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")
            length = int(re.search(rb"content-length: (\d+)", answer)[1])
            while len(answer.partition(b"\r\n\r\n")[2]) < length:
                answer += sender.recv(65536)


def test_a_second_request_sent_before_the_first_answer_is_answered_too(patient):
    host, port = patient
    with socket.create_connection((host, port), timeout=60) as sender:
        sender.sendall(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        answer = b""
        while b"ready" not in answer:
            answer += sender.recv(65536)
    assert answer.index(b'{"status":"ok"}') < answer.index(b'{"status":"ready"}')


def test_a_connection_without_a_request_stays_open_longer_than_a_request_may_take(impatient):
    with socket.create_connection(impatient) as sender:
        for _ in range(2):
            sender.settimeout(60)
            sender.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b'{"status":"ok"}' not in answer:
                answer += sender.recv(65536)
            sender.settimeout(0.8)
            with pytest.raises(TimeoutError):
                sender.recv(1)


def test_a_client_that_never_reads_its_answer_is_let_go(monkeypatch):
    """Its connection holds the answer in memory, so the service closes it before the client does."""
    monkeypatch.setattr(serving, "STALLED_SECONDS", 0.5)

    async def endless(reader, writer):
        try:
            while True:
                writer.write(b"x" * 2**16)
                await writer.drain()
        except OSError as error:
            closed_with.set_result(error.errno)
        finally:
            writer.transport.abort()

    async def serve_one():
        nonlocal closed_with
        closed_with = asyncio.get_running_loop().create_future()
        with bound("127.0.0.1", 0) as listener, socket.socket() as deaf:
            async with await asyncio.start_server(endless, sock=listener):
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.connect(listener.getsockname())
                return await asyncio.wait_for(closed_with, 60)

    closed_with = None
    assert asyncio.run(serve_one()) == errno.ETIMEDOUT


SERVICE = textwrap.dedent(
    """
    import sys
    from querylect.configs.schema import EnvironmentConfig
    from querylect.envs.environment import Environment
    from querylect.envs.server import process
    from querylect.envs.server.serve import serve

    real = Environment.search
    def search(self, plans):
        if plans[0].probes[0].terms[0].text.startswith("slow"):
            print("searching", flush=True)
            sys.stdin.readline()
        return real(self, plans)
    Environment.search = search
    process.GIVE_UP_SECONDS = float(sys.argv[2])
    serve(EnvironmentConfig.model_validate_json(sys.argv[1]), ready=lambda url: print(url, flush=True))
    print("ended", flush=True)
    """
)


@pytest.fixture
def searching(small_environment, tmp_path):
    """A served process in the middle of a search that ends with a line on its standard input: the process, its URL and
    the future answer."""

    @contextmanager
    def start(give_up_seconds=60.0, **changes):
        config = small_environment.model_copy(update=changes)
        arguments = [config.model_dump_json(), str(give_up_seconds)]
        with ThreadPoolExecutor(1) as pool, Piped(arguments, tmp_path, code=SERVICE) as process:
            url = process.stdout.readline().strip()
            answer = pool.submit(search, url, "slow", timeout=60)
            assert process.stdout.readline() == "searching\n"
            yield process, url, answer

    return start


def _go_on(process):
    process.stdin.write("go on\n")


def _until_closing(url):
    """Wait until the service has noticed a signal."""
    until = time.monotonic() + 60
    while httpx.get(f"{url}/readyz", trust_env=False).status_code == 200:
        assert time.monotonic() < until


def test_draining_refuses_new_work_first_and_ends_what_is_under_way(searching):
    with searching(drain_seconds=600.0) as (process, url, answer):
        process.send_signal(signal.SIGTERM)
        _until_closing(url)
        ready = httpx.get(f"{url}/readyz")
        assert (ready.status_code, ready.headers["retry-after"], ready.headers["connection"]) == (503, "1", "close")
        assert ready.json()["detail"].startswith("the service is going down")
        assert search(url, "blood").status_code == 503
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert figures(url)["querylect_ready"] == 0
        assert not answer.done()
        _go_on(process)
        assert answer.result(60).status_code == 200
        assert httpx.get(f"{url}/healthz").status_code == 200, "the port stays until the time to drain is over"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "ended\n", "a second signal ends it"
        assert process.wait(60) == 0


def _until_waiting(url, plans):
    until = time.monotonic() + 60
    while figures(url)["querylect_queue_plans"] != plans:
        assert time.monotonic() < until


def test_what_a_client_that_has_left_asked_for_is_not_searched(searching):
    body = json.dumps({"plans": [plan(f"blood {n}") for n in range(50)] + [plan("headache")]}).encode()
    with searching() as (process, url, first), ThreadPoolExecutor(1) as pool:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port)) as sender:
            sender.sendall(POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            _until_waiting(url, 52)
            staying = pool.submit(search, url, "headache", "glucose", timeout=60)
            _until_waiting(url, 53)
        _until_waiting(url, 3)
        _go_on(process)
        assert (first.result(60).status_code, staying.result(60).status_code) == (200, 200)
        metrics = figures(url)
    assert metrics['querylect_plans_total{outcome="searched"}'] == 3
    assert metrics['querylect_requests_total{route="/v1/search",status="499"}'] == 1


@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGINT, 0.3), (signal.SIGTERM, 0.0)])
def test_the_port_closes_after_the_time_to_drain_and_a_search_ends(searching, number, seconds):
    with searching(drain_seconds=seconds) as (process, url, answer):
        process.send_signal(number)
        until = time.monotonic() + 60
        with suppress(httpx.TransportError):
            while time.monotonic() < until:
                httpx.get(f"{url}/healthz", trust_env=False)
            pytest.fail("the port is still open")
        _go_on(process)
        assert answer.result(60).status_code == 200
        assert (process.stdout.readline(), process.wait(60)) == ("ended\n", 0)


def test_a_third_signal_kills_a_process_whose_search_does_not_end(searching):
    with searching(drain_seconds=600.0) as (process, url, _):
        process.send_signal(signal.SIGTERM)
        _until_closing(url)
        process.send_signal(signal.SIGTERM)
        until = time.monotonic() + 60
        with suppress(httpx.TransportError):
            while time.monotonic() < until:
                httpx.get(f"{url}/healthz", trust_env=False)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_a_search_that_outlasts_the_end_is_answered_503(searching):
    with searching(give_up_seconds=0.2) as (process, _, answer):
        process.send_signal(signal.SIGTERM)
        assert answer.result(60).status_code == 503


WORKERS = textwrap.dedent(
    """
    import multiprocessing, os, signal, sys, time
    import uvicorn
    from querylect.configs.schema import EnvironmentConfig
    from querylect.envs.environment import Environment
    from querylect.envs.server import serve as module
    from querylect.logs import set_up_logging

    if sys.argv[3]:  # workers are forked, with what it does to them; else new processes, as users have them
        spawning = multiprocessing.get_context
        multiprocessing.get_context = lambda method: spawning({"spawn": "fork"}[method])

        def in_worker():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            exec(sys.argv[3], globals())

        os.register_at_fork(after_in_child=in_worker)
    set_up_logging()
    module.HANGING_SECONDS = float(sys.argv[2])
    module.serve(EnvironmentConfig.model_validate_json(sys.argv[1]), ready=lambda url: print(url, flush=True))
    print("ended", flush=True)
    """
)


@pytest.fixture
def start_workers(small_environment, tmp_path):
    """A function that serves with two workers; `in_worker` is code that runs first in each."""
    with ExitStack() as stack:

        def start(in_worker="pass", hanging_seconds=20, **changes):
            config = small_environment.model_copy(update={"workers": 2, **changes})
            arguments = [config.model_dump_json(), str(hanging_seconds), in_worker]
            return stack.enter_context(Piped(arguments, tmp_path, code=WORKERS))

        yield start


def workers_of(parent):
    """The ids of its workers; it has no other children, but what keeps count of shared memory where it spawns them."""
    alive = [child for child in psutil.Process(parent.pid).children() if child.status() != psutil.STATUS_ZOMBIE]
    return {child.pid for child in alive if not any("resource_tracker" in part for part in child.cmdline())}


def _until_two_work(parent, killed=frozenset()):
    until = time.monotonic() + 60
    while len(workers_of(parent) - killed) < 2:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_workers_share_a_port_and_their_figures_and_a_dead_one_is_replaced(start_workers):
    """Three real processes, of which one is killed with SIGKILL, and then the parent."""
    parent = start_workers(in_worker="", log="none")
    url = parent.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:")
    first = workers_of(parent)
    assert len(first) == 2
    for n in range(40):
        assert search(url, f"headache {n}").status_code == 200
    until = time.monotonic() + 60  # a request is counted after its answer was sent
    while figures(url)['querylect_requests_total{route="/v1/search",status="200"}'] != 40:
        assert time.monotonic() < until

    killed = min(first)
    os.kill(killed, signal.SIGKILL)
    _until_two_work(parent, {killed})
    searches, until = 0, time.monotonic() + 60
    while searches < 20:
        try:
            assert search(url, f"blood {searches}").status_code == 200
            searches += 1
        except httpx.TransportError:
            assert time.monotonic() < until
    assert re.search(rf"worker {killed} ended \(code -9\); starting another", parent.stderr.readline())
    workers = [psutil.Process(pid) for pid in workers_of(parent)]
    parent.kill()
    ended, alive = psutil.wait_procs(workers, timeout=60)
    for process in alive:
        process.kill()
    assert (len(ended), alive) == (2, []), "they are gone after their parent was killed"


def test_a_dead_worker_that_cannot_be_replaced_ends_the_service(small_environment, start_workers, tmp_path):
    index = shutil.copytree(small_environment.index, tmp_path / "index")
    parent = start_workers(index=str(index))
    assert parent.stdout.readline().startswith("http://")
    (index / "manifest.json").unlink()
    os.kill(min(workers_of(parent)), signal.SIGKILL)
    assert f"IndexFolderError: {index}" in parent.stderr.read()
    assert parent.wait(60) == 1


def test_replacements_that_crash_are_started_until_one_opens(start_workers, tmp_path):
    """Whatever kills them, such as memory that runs out for a while: each worker by itself comes back."""
    crash = tmp_path / "crash"
    parent = start_workers(f"if os.path.exists({str(crash)!r}):\n    Environment.open = lambda _: os._exit(7)")
    url = parent.stdout.readline().strip()
    crash.touch()
    killed = workers_of(parent)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    endings = [re.search(r"worker (\d+) ended \(code (-?\d+)\)", parent.stderr.readline()).groups() for _ in range(4)]
    assert {int(pid) for pid, code in endings if code == "-9"} == killed
    assert {code for _, code in endings} == {"-9", "7"}
    crash.unlink()
    assert search(url, "blood", timeout=60).status_code == 200
    parent.send_signal(signal.SIGTERM)
    assert (parent.stdout.read(), parent.wait(60)) == ("ended\n", 0)


def test_a_worker_that_hangs_is_replaced(start_workers):
    parent = start_workers(hanging_seconds=6)
    assert parent.stdout.readline().startswith("http://")
    hanging = min(workers_of(parent))
    os.kill(hanging, signal.SIGSTOP)
    assert f"worker {hanging} has not reported" in parent.stderr.readline()
    assert f"worker {hanging} ended (code -9)" in parent.stderr.readline()
    _until_two_work(parent)


def test_a_signal_ends_workers_that_still_open_their_index(start_workers):
    opening = "Environment.open = lambda _: print('opening', flush=True) or time.sleep(600)"
    parent = start_workers(opening, drain_seconds=600.0)
    assert parent.stdout.readline() == "opening\n"
    parent.send_signal(signal.SIGTERM)
    assert parent.stdout.read().endswith("ended\n")
    assert parent.wait(60) == 0


@pytest.mark.parametrize(
    "crash", ["Environment.open = lambda _: os._exit(7)", "uvicorn.Server.startup = lambda *_, **__: os._exit(7)"]
)
def test_a_worker_that_crashes_at_its_start_ends_the_service(start_workers, crash):
    parent = start_workers(crash)
    stderr = parent.stderr.read()
    assert parent.wait(60) == 1
    assert "EnvironmentUnavailableError: " in stderr
    assert "exit code 7" in stderr


def test_a_second_signal_ends_workers_that_drain(start_workers):
    parent = start_workers(drain_seconds=600.0)
    url = parent.stdout.readline().strip()
    parent.send_signal(signal.SIGTERM)
    _until_closing(url)
    parent.send_signal(signal.SIGTERM)
    assert (parent.stdout.read(), parent.wait(60)) == ("ended\n", 0)


def test_what_a_worker_cannot_open_is_the_users_error(small_environment, monkeypatch):
    fork_server()
    forking = SimpleNamespace(get_context=instead_of_spawn)
    monkeypatch.setattr("querylect.envs.server.serve.multiprocessing", forking)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "the caller's")
    missing = small_environment.model_copy(update={"workers": 2, "index": "/nonexistent/index"})
    with refused(IndexFolderError, "/nonexistent/index", "querylect index build"):
        serve(missing)
    assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == "the caller's"


def test_clients_in_a_storm_get_every_sample_scored_right_or_not_at_all(environment, small_environment, run_app):
    """Far more requests than may wait: every sample is scored or unscorable, and no 503 becomes a reward."""
    config = EnvironmentConfig.model_validate({**small_environment.model_dump(), "max_pending": 4, "max_plans": 4})
    words = ["headache", "blood", "glucose", "scurvy", "migraine"]
    steps = [Step(question_id="q-head", plan=SearchPlan.of(f"{word} {n}")) for n in range(8) for word in words]
    worth = [
        environment.score("q-head", ranking, ["ndcg@10"])["ndcg@10"]
        for ranking in environment.search([step.plan for step in steps])
    ]
    assert len(set(worth)) > 2

    async def storm(url):
        settings = ClientConfig(urls=[url], timeout=30.0, deadline=10.0)
        clients = [EnvironmentClient(settings) for _ in range(6)]
        try:
            storming = asyncio.gather(*(client.step(steps) for client in clients))
            while not any(client.stats.failures for client in clients):  # until somebody has found the queue full
                await asyncio.sleep(0.005)
            blocking.free.set()
            return await storming, [client.stats for client in clients]
        finally:
            await asyncio.gather(*(client.close() for client in clients))

    blocking = BlockingEnvironment(environment)
    with run_app(create_app(blocking, config)) as url:
        outcomes, stats = asyncio.run(storm(url))
        assert search(url, "after").status_code == 200
        metrics = figures(url)
    statuses = {name[-5:-2] for name in metrics if name.startswith('querylect_requests_total{route="/v1/step"')}
    assert statuses == {"200", "503"}, "and all are as before"
    refusals = metrics['querylect_requests_total{route="/v1/step",status="503"}']
    assert metrics['querylect_plans_total{outcome="refused"}'] == 4 * refusals, "of four plans each"
    assert (metrics["querylect_queue_plans"], metrics["querylect_requests_under_way"]) == (0, 1)
    for results, counted in zip(outcomes, stats, strict=True):
        scored = [n for n, result in enumerate(results) if result is not None]
        assert len(scored) + counted.unscorable == len(steps)
        assert [results[n].reward for n in scored] == [worth[n] for n in scored]
    assert any(result is not None for results in outcomes for result in results)
