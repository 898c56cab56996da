"""What an operator relies on: figures, log lines, slow and absent clients, a graceful end, workers behind one port."""

import asyncio
import logging
import os
import signal
import socket
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import psutil
import pytest
import uvicorn
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import EnvironmentClient, RetryClock, Step
from querylect.envs.plan import SearchPlan
from querylect.envs.server import app, batching, limits
from querylect.envs.server.app import create_app
from querylect.envs.server.batching import OverloadedError
from querylect.envs.server.serve import STARTUP_FAILURE, _Workers
from querylect.errors import EnvironmentUnavailableError

from ..forked import Piped
from ..raising import refused
from ..waiting import until
from .test_service_api import BlockingEnvironment, plan

pytestmark = [pytest.mark.server, pytest.mark.slow]


def search(url, *texts):
    body = {"plans": [plan(text) for text in texts]}
    return httpx.post(f"{url}/v1/search", json=body, trust_env=False, timeout=300)


def figures(url):
    """Every sample of /metrics by its name and labels."""
    answer = httpx.get(f"{url}/metrics", trust_env=False)
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


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


def test_bodies_that_never_end_are_refused_and_hold_nothing(environment, run_app, monkeypatch):
    """Each is cut off after READ_SECONDS; until then, all of them together hold at most MAX_OPEN_BYTES."""
    monkeypatch.setattr(limits, "READ_SECONDS", 0.0)  # own clock
    head = (
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"
    )
    with run_app(create_app(environment)) as url:
        address = httpx.URL(url)
        for _ in range(20):
            with socket.create_connection((address.host, address.port), 300) as sender:
                sender.sendall(head + b'{"plans": [')
                assert sender.recv(65536).startswith(b"HTTP/1.1 408 ")
        monkeypatch.undo()
        assert search(url, "headache").status_code == 200
        monkeypatch.setattr(limits, "MAX_OPEN_BYTES", 10)
        refusal = search(url, "headache")
        assert (refusal.status_code, refusal.headers["retry-after"]) == (503, "1")
        assert httpx.get(f"{url}/healthz").status_code == 200


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


def test_answers_that_nobody_reads_are_given_up_and_do_not_fill_the_memory(environment, run_app, monkeypatch):
    """A server waits in `send` for a client that does not read."""
    monkeypatch.setattr(app, "SMALL_BYTES", 10)
    monkeypatch.setattr(app, "MAX_UNREAD_BYTES", 100)
    monkeypatch.setattr(app, "READ_SECONDS", 0.0)  # own clock
    sent = []

    async def send(message):
        if len(sent) > 1:
            await asyncio.Event().wait()
        sent.append(message)

    async def ask():
        answers = app._UnreadAnswers()
        answer = await answers.of(b"[", iter([{"text": "long " * 12}]), 1)
        assert answers.unread == len(answer.body) > 60
        with pytest.raises(OverloadedError):
            await answers.of(b"[", iter([{"text": "long " * 12}]), 1)
        await answer({}, None, send)
        assert answers.unread == 0
        assert [len(message.get("body", b"")) for message in sent] == [0, 10]
        sent.clear()

    asyncio.run(ask())
    monkeypatch.setattr(app, "MAX_ANSWER_BYTES", 20)
    with run_app(create_app(environment)) as url:
        answer = search(url, "headache")
        assert (answer.status_code, "Ask for fewer documents" in answer.json()["detail"]) == (413, True)


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


WORKERS = textwrap.dedent(
    """
    import sys
    from querylect.configs.schema import EnvironmentConfig
    from querylect.envs.server.serve import serve
    from querylect.logs import set_up_logging

    if __name__ == "__main__":
        set_up_logging()
        serve(EnvironmentConfig.model_validate_json(sys.argv[1]), ready=lambda url: print(url, flush=True))
        print("ended", flush=True)
    """
)


def workers_of(parent):
    """The ids of its workers; its only other child keeps count of shared memory."""
    alive = [child for child in psutil.Process(parent.pid).children() if child.status() != psutil.STATUS_ZOMBIE]
    return {child.pid for child in alive if not any("resource_tracker" in part for part in child.cmdline())}


def test_workers_share_a_port_and_their_figures_and_a_dead_one_is_replaced(small_environment, tmp_path):
    """Three real processes, of which one is killed with SIGKILL, and then the parent."""
    config = small_environment.model_copy(update={"workers": 2})
    with Piped([config.model_dump_json()], tmp_path, code=WORKERS) as parent:
        url = parent.stdout.readline().strip()
        first = workers_of(parent)
        assert len(first) == 2
        for n in range(8):
            assert search(url, f"headache {n}").status_code == 200
        counter = 'querylect_requests_total{route="/v1/search",status="200"}'
        until(lambda: figures(url)[counter] == 8)  # a request is counted after its answer was sent

        killed = min(first)
        os.kill(killed, signal.SIGKILL)
        until(lambda: len(workers_of(parent) - {killed}) == 2)

        def answered():
            with suppress(httpx.TransportError):
                return search(url, "blood").status_code == 200

        until(answered)
        workers = [psutil.Process(pid) for pid in workers_of(parent)]
        parent.kill()
        until(lambda: not any(process.is_running() for process in workers), "they outlive their parent")


def test_a_worker_that_cannot_open_the_environment_ends_the_service():
    class Failed:
        exitcode, pid = STARTUP_FAILURE, 0

        def is_alive(self, timeout):
            return False

        def kill(self):
            pass

        join = kill

        def terminate(self):
            self.terminated = True

    workers = _Workers(uvicorn.Config(None), None, lambda: None)
    workers.processes = [Failed()]
    with refused(EnvironmentUnavailableError):
        workers.keep_subprocess_alive()
    assert workers.processes[0].terminated


def test_clients_in_a_storm_get_every_sample_scored_right_or_not_at_all(environment, run_app, monkeypatch):
    """Far more requests than may wait: every sample is scored or a failed search, and no 503 becomes a reward."""
    monkeypatch.setattr(batching, "MAX_PENDING", 1000)
    monkeypatch.setattr("querylect.envs.client.client.MAX_PLANS_PER_REQUEST", 4)
    words = ["headache", "blood", "glucose", "scurvy", "migraine"]
    steps = [Step(question_id="q-head", plan=SearchPlan.of(f"{word} {n}")) for n in range(8) for word in words]
    worth = [
        environment.score("q-head", ranking, ["ndcg@10"])["ndcg@10"]
        for ranking in environment.rank([step.plan for step in steps])
    ]
    assert len(set(worth)) > 2

    def storm(url):
        settings = ClientConfig(urls=[url], deadline=2400.0)
        with ExitStack() as stack:
            clock = RetryClock(sleep=lambda _: asyncio.sleep(0))
            clients = [stack.enter_context(EnvironmentClient(settings, clock=clock)) for _ in range(6)]
            storming = [client.start_step(steps) for client in clients]
            until(lambda: any(client.last_failure for client in clients))  # somebody has found the queue full
            blocking.free.set()
            return [future.result() for future in storming]

    blocking = BlockingEnvironment(environment)
    with run_app(create_app(blocking)) as url:
        outcomes = storm(url)
        metrics = figures(url)
    assert metrics['querylect_requests_total{route="/v1/step",status="503"}'] > 0
    assert [[result.reward for result in results] for results in outcomes] == [worth] * 6
