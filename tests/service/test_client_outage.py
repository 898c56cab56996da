"""The client against servers that are dead, slow, overloaded, flapping or wrong: an outage is never a reward."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
from querylect.configs.schema import ClientConfig
from querylect.data.types import Question
from querylect.envs.client import client as client_module
from querylect.envs.client import transport
from querylect.envs.client.client import EnvironmentClient, Step, SyncEnvironmentClient
from querylect.envs.client.transport import retry_after_seconds
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.server.app import create_app
from querylect.errors import ConfigError, EnvironmentUnavailableError, RequestError, TokenError

from ..raising import refused

PATIENT = ClientConfig(urls=["http://unused"], timeout=20.0, deadline=35.0)
"""Only a service that never answers takes that long, even on a busy machine. With the pauses of `clock`, the
last attempt before the deadline has 9 seconds."""
BESIDE_A_STALL = PATIENT.model_copy(update={"timeout": 2.0})
"""What answers at all answers within this; a stall costs as much."""


class PausesOnly:
    """The client's clock and its sleep: a pause ends at once, and the clock goes on by pauses alone."""

    def __init__(self):
        self.pauses = []

    def monotonic(self):
        return sum(self.pauses)

    async def sleep(self, seconds):
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    perf_counter = staticmethod(time.perf_counter)
    time = staticmethod(time.time)


@pytest.fixture(scope="module")
def new_app(small_environment):
    environment = Environment.open(small_environment)
    return lambda: create_app(environment, small_environment.model_copy(update={"max_plans": 8}))


@pytest.fixture(scope="module")
def scripted(new_app, run_app):
    """A service that plays scripts, and its URL."""
    flapping = Flapping(new_app())
    with run_app(flapping) as url:
        yield flapping, url


@pytest.fixture(scope="module")
def url(new_app, run_app):
    with run_app(new_app()) as url:
        yield url


@pytest.fixture
def dead():
    """A URL where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Deadlines pass by the pauses of the client, each the longest, not by the time that a busy machine takes."""
    clock = PausesOnly()
    for module in (transport, client_module):
        monkeypatch.setattr(module, "time", clock)
    unchanged = {name: getattr(asyncio, name) for name in ("timeout", "gather")}
    monkeypatch.setattr(transport, "asyncio", SimpleNamespace(sleep=clock.sleep, **unchanged))
    monkeypatch.setattr("tenacity.wait.random", SimpleNamespace(uniform=lambda low, high: high))
    return clock


@contextmanager
def dying_server(behave):
    """The URL of a server that hands each connection to `behave`, in a thread of its own, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=behave, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def echoed_id(scope):
    """The header that says which request is answered."""
    return (b"x-request-id", dict(scope["headers"])[b"x-request-id"])


class Flapping:
    """The real service behind a script: each POST takes the next behaviour, and the last one stays."""

    def __init__(self, app):
        self.app = app
        self.play("pass")

    def play(self, *script):
        self.script, self.posts = script, 0

    async def __call__(self, scope, receive, send):
        behaviour = "pass"
        if scope["type"] == "http" and scope["method"] == "POST":
            behaviour = self.script[min(self.posts, len(self.script) - 1)]
            self.posts += 1
        if behaviour == "pass":
            await self.app(scope, receive, send)
        elif behaviour == "stall":
            await asyncio.sleep(30)
        elif callable(behaviour):
            await self._changed(behaviour, scope, receive, send)
        else:
            status, headers, body = behaviour
            headers = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _changed(self, change, scope, receive, send):
        """The real answer with its JSON changed, under the id of the request."""
        parts = []

        async def collect(message):
            parts.append(message.get("body", b""))

        await self.app(scope, receive, collect)
        body = json.dumps(change(json.loads(b"".join(parts)))).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [echoed_id(scope)]})
        await send({"type": "http.response.body", "body": body})


def steps(*texts, question="q-head"):
    return [Step(question_id=question, plan=SearchPlan.of(text)) for text in texts]


def stepping(urls, steps, config=PATIENT, **more):
    """Results of one call, and the client's counters."""
    with SyncEnvironmentClient(config, urls) as client:
        return client.step(steps, **more), client.stats


def test_the_plain_way(url):
    started = time.perf_counter()
    with SyncEnvironmentClient(ClientConfig(urls=[url])) as client:
        assert client.environment().splits == {"test": 3, "train": 1}
        assert client.questions("train") == [Question("q-gums", "bleeding gums")]
        (ranking,) = client.search([SearchPlan.of("blood glucose", k=1)])
        assert ranking[0].document.text == "insulin lowers blood glucose"
        (result,) = client.step(steps("triptan headache"), with_text=True, metrics=["recall@2"])
        assert (result.reward, result.metrics["recall@2"], result.ranking[0].id) == (1.0, 1.0, "triptan")
        assert client.step([]) == []
        assert client.last_failure is None
        assert (client.stats.attempts, client.stats.retries) == (4, 0)
        assert 0 < client.stats.seconds < time.perf_counter() - started
        client.close()
    client.close()


def test_the_synchronous_client_works_inside_a_running_loop(url):
    async def notebook():
        with SyncEnvironmentClient(ClientConfig(urls=[url])) as client:
            return client.environment().corpus_size

    assert asyncio.run(notebook()) == 6


def test_many_steps_go_in_parts_and_come_back_in_order(scripted):
    flapping, url = scripted
    flapping.play("pass")
    batch = [step for n in range(10) for step in (*steps(f"headache {n}"), *steps("glucose", question="q-sugar"))]
    results, stats = stepping([url], batch)
    assert flapping.posts == 3
    assert [result.question_id for result in results] == ["q-head", "q-sugar"] * 10
    assert [result.reward for result in results[1::2]] == [1.0] * 10
    assert stats.unscorable == 0


def test_questions_are_read_page_by_page(url, monkeypatch):
    monkeypatch.setattr(client_module, "MAX_PAGE", 2)
    with SyncEnvironmentClient(ClientConfig(urls=[url])) as client:
        assert [question.id for question in client.questions("test")] == ["q-head", "q-sugar", "q-hidden"]
        assert client.stats.requests == 2


def test_a_dead_service_leaves_steps_unscorable_and_names_its_url(dead, clock):
    results, stats = stepping([dead], steps("a", "b", "c"))
    assert results == [None, None, None]
    assert stats.unscorable == 3
    assert stats.last_failure.url == dead
    assert "ConnectError" in stats.last_failure.reason
    assert clock.pauses == [0.25, 0.5, 1, 2, 4, 8, 10], "another 10 seconds would be beyond the deadline"


def test_a_dead_service_ends_a_start_with_its_url_and_the_remedy(dead):
    with SyncEnvironmentClient(PATIENT, [dead]) as client:
        for call in (client.environment, lambda: client.search([SearchPlan.of("a")]), lambda: client.questions("test")):
            with refused(EnvironmentUnavailableError, dead, "ConnectError", "querylect serve") as failed:
                call()
            assert failed.value.exit_code == 1


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("stall", "no answer within"),
        ((503, {}, b""), "HTTP 503: Service Unavailable"),
        ((500, {}, b"oops"), "HTTP 500: oops"),
        ((429, {}, b""), "HTTP 429"),
        ((408, {}, b""), "HTTP 408"),
        ((302, {"location": "/"}, b""), "HTTP 302"),
        ((200, {}, b"<html>welcome to the proxy</html>"), "Invalid JSON"),
        ((200, {}, b""), "Invalid JSON"),
        ((200, {}, b"{}"), "index_hash"),
        ((204, {}, b""), "HTTP 204"),
    ],
)
def test_no_failure_becomes_a_reward(scripted, behaviour, reason, clock, monkeypatch):
    config = PATIENT
    if behaviour == "stall":  # each attempt costs the timeout: few of them
        config = PATIENT.model_copy(update={"timeout": 0.2})
        monkeypatch.setattr(transport, "BACKOFF_SECONDS", transport.MAX_BACKOFF_SECONDS)
    flapping, url = scripted
    flapping.play(behaviour)
    results, stats = stepping([url], steps("headache"), config)
    assert results == [None]
    assert reason in stats.last_failure.reason
    assert stats.retries >= 2
    assert config.deadline / 2 < sum(clock.pauses) < config.deadline


JSON_200 = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("framing", "share"),
    [
        (b"Content-Length: %d\r\n\r\n", 0.0),
        (b"Content-Length: %d\r\n\r\n", 0.99),
        (b"Transfer-Encoding: chunked\r\n\r\n%x\r\n", 0.5),
        (b"Connection: close\r\n\r\n", 0.5),
    ],
)
def test_an_answer_that_ends_in_the_middle_is_no_reward(url, framing, share):
    """As from a process that dies while it sends: whatever the framing, what arrived is not used."""
    body = {"steps": [step.model_dump() for step in steps("triptan headache")], "with_text": True}
    answer = httpx.post(f"{url}/v1/step", json=body).content
    description = httpx.get(f"{url}/v1/environment").content
    assert json.loads(answer)["results"][0]["reward"] == 1.0
    cut = answer[: int(share * len(answer))]

    def die(connection):
        with connection:
            request = connection.recv(65536)
            if request.startswith(b"GET"):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(description) + description)
                request = connection.recv(65536)
            if request:
                connection.sendall(JSON_200 + (framing % len(answer) if b"%" in framing else framing) + cut)

    with dying_server(die) as dying_url:
        results, stats = stepping([dying_url], steps("triptan headache"), with_text=True)
        assert results == [None]
        assert stats.last_failure.url == dying_url
        results, stats = stepping([dying_url, url], steps("triptan headache"), with_text=True)
    assert [result.reward for result in results] == [1.0], "another replica answers for it"


def results_with(**changes):
    return lambda answer: {**answer, "results": [{**result, **changes} for result in answer["results"]]}


def forged(field, change):
    """Changes one field of each result; in a dictionary or a ranking, every value or score."""

    def changed(value):
        if isinstance(value, dict):
            return {name: change(number) for name, number in value.items()}
        if isinstance(value, list):
            return [{**hit, "score": change(hit["score"])} for hit in value]
        return change(value)

    return lambda answer: {
        **answer,
        "results": [{**result, field: changed(result[field])} for result in answer["results"]],
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (results_with(reward=None), "results.0.reward"),
        (results_with(reward=float("nan")), "results.0.reward"),
        (results_with(reward=float("inf")), "results.0.reward"),
        (results_with(reward=-0.5), "results.0.reward"),
        (results_with(reward=1.5), "results.0.reward"),
        (results_with(metrics={}), "only the metrics []"),
        (results_with(metrics={"ndcg@10": float("nan")}), "results.0.metrics"),
        (results_with(question_id="q-sugar"), "a result of question 'q-sugar'"),
        (results_with(ranking=[{"id": str(n), "score": 1} for n in range(11)]), "11 hits for k=10"),
        (results_with(ranking=[{"id": "a", "score": 1}] * 2), "a document twice"),
        (results_with(ranking=[{"id": "a", "score": 1}]), "without their text"),
        (results_with(plan_digest=""), "another plan"),
        (results_with(reward=0.25), "the reward 0.25 and ndcg@10"),
        (forged("reward", bool), "results.0.reward"),
        (forged("reward", str), "results.0.reward"),
        (forged("metrics", bool), "results.0.metrics"),
        (forged("metrics", lambda value: value + 1), "results.0.metrics"),
        (forged("ranking", str), "results.0.ranking.0.score"),
        (forged("ranking", bool), "results.0.ranking.0.score"),
        (forged("ranking", lambda score: -score), "scores rise"),
        (lambda answer: {**answer, "results": answer["results"][::-1]}, "another plan"),
        (lambda answer: {**answer, "results": answer["results"][:1]}, "1 results for 2 steps"),
        (lambda answer: {**answer, "results": answer["results"] * 2}, "4 results for 2 steps"),
    ],
)
def test_an_answer_that_does_not_fit_is_a_failure(scripted, change, reason):
    flapping, url = scripted
    flapping.play(change)
    results, stats = stepping([url], steps("headache", "migraine"), with_text=True)
    assert results == [None, None]
    assert reason in stats.last_failure.reason


def test_a_flapping_service_is_asked_until_it_answers(scripted):
    script = [(503, {"retry-after": "0"}, b""), (500, {}, b""), (200, {}, b"[]"), "stall", "pass"]
    flapping, url = scripted
    flapping.play(*script)
    results, stats = stepping([url], steps("triptan headache"), BESIDE_A_STALL)
    assert [result.reward for result in results] == [1.0]
    assert (stats.failures, stats.retries, stats.unscorable) == (4, 4, 0)


def test_a_wait_beyond_the_deadline_is_not_begun(scripted, clock):
    flapping, url = scripted
    flapping.play((503, {"retry-after": "3600"}, b""))
    results, _ = stepping([url], steps("headache"))
    assert results == [None]
    assert flapping.posts == 1
    assert clock.pauses == []


def test_an_attempt_that_has_hardly_any_time_left_is_not_begun(scripted, monkeypatch):
    """It would time out, and the reason of the first one would be lost."""
    jitter = PATIENT.deadline - transport.LEAST_ATTEMPT_SECONDS / 2
    monkeypatch.setattr("tenacity.wait.random", SimpleNamespace(uniform=lambda low, high: jitter))
    flapping, url = scripted
    flapping.play((503, {}, b""))
    results, stats = stepping([url], steps("headache"))
    assert (results, flapping.posts) == ([None], 1)
    assert "HTTP 503" in stats.last_failure.reason


def test_another_replica_answers_for_a_dead_and_for_a_slow_one(scripted, url, dead):
    slow, slow_url = scripted
    slow.play("stall")
    with SyncEnvironmentClient(BESIDE_A_STALL, [dead, slow_url, url]) as client:
        for n in range(6):
            (result,) = client.step(steps(f"triptan headache {n}"))
            assert result.reward == 1.0
        assert client.stats.unscorable == 0
        assert client.stats.failures <= 3, "replicas that failed must be asked last"
    assert slow.posts <= 1


def test_each_round_of_discovery_asks_all_replicas_even_beside_a_silent_one(new_app, run_app, monkeypatch):
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 1.0)
    ids = {"silent": [], "starting": []}

    def replica(name):
        app = new_app()

        async def answer(scope, receive, send):
            if scope["type"] == "http":
                ids[name].append(dict(scope["headers"])[b"x-request-id"])
                if name == "silent":
                    await asyncio.sleep(30)
                if len(ids[name]) < 3:
                    await send({"type": "http.response.start", "status": 503, "headers": []})
                    await send({"type": "http.response.body", "body": b""})
                    return
            await app(scope, receive, send)

        return answer

    with (
        run_app(replica("silent")) as silent,
        run_app(replica("starting")) as starting,
        SyncEnvironmentClient(BESIDE_A_STALL, [silent, starting]) as client,
    ):
        client.environment()
    assert [len(ids["silent"]), len(ids["starting"])] == [3, 3]
    assert len({*ids["silent"], *ids["starting"]}) == 6, "no two attempts have one id"


def test_every_healthy_replica_gets_its_share(new_app, run_app):
    replicas = [Flapping(new_app()), Flapping(new_app())]
    with run_app(replicas[0]) as first, run_app(replicas[1]) as second:
        stepping([first, second], steps(*(f"headache {n}" for n in range(32))))
    assert [replica.posts for replica in replicas] == [2, 2]


def test_an_outage_of_one_request_leaves_the_others_scored(scripted, monkeypatch):
    for name in ("BACKOFF_SECONDS", "MAX_BACKOFF_SECONDS"):  # a second attempt would wait beyond the deadline
        monkeypatch.setattr(transport, name, 100 * PATIENT.deadline)
    flapping, url = scripted
    flapping.play("pass", "stall")
    results, stats = stepping([url], steps(*(f"headache {n}" for n in range(16))), BESIDE_A_STALL)
    missing = [result is None for result in results]
    assert missing in ([False] * 8 + [True] * 8, [True] * 8 + [False] * 8)
    assert stats.unscorable == 8


def test_a_service_that_dies_between_two_steps_scores_no_more(new_app, run_app):
    with run_app(new_app()) as url:
        client = SyncEnvironmentClient(PATIENT, [url])
        assert client.step(steps("headache"))[0] is not None
    with client:
        assert client.step(steps("headache")) == [None]
        assert client.last_failure.url == url


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda client: client.step(steps("a", question="nobody")), ["404", "'nobody'"]),
        (lambda client: client.step(steps("a"), metrics=["fame@1"]), ["422", "fame@1"]),
        (lambda client: client.search([SearchPlan.of("a", k=1001)]), ["422", "1000"]),
        (lambda client: client.search([SearchPlan.of("a\ud800")]), ["surrogate"]),
        (lambda client: client.questions("dev"), ["404", "test, train"]),
    ],
)
def test_a_wrong_request_is_an_error_at_once(url, call, facts):
    with SyncEnvironmentClient(PATIENT, [url]) as client:
        client.environment()
        with refused(RequestError, *facts):
            call(client)
        assert client.stats.attempts <= 2
        assert client.stats.retries == 0


def test_more_plans_than_the_service_takes_are_refused_not_repeated(url, monkeypatch):
    with SyncEnvironmentClient(PATIENT, [url]) as client:
        info = client.environment()
        generous = info.model_copy(update={"limits": info.limits.model_copy(update={"max_plans": 100})})
        client._client._info = generous
        with refused(RequestError, "413", "at most 8"):
            client.step(steps(*"abcdefghij"))
        assert client.stats.attempts == 2


def test_the_token_comes_from_the_variable_that_the_settings_name(small_environment, run_app, monkeypatch):
    config = ClientConfig(urls=["http://unused"], token_env="MY_TOKEN")
    with run_app(create_app(Environment.open(small_environment), small_environment, token="right")) as url:
        for token, accepted in [("right", True), ("wrong", False), ("", False)]:
            monkeypatch.setenv("MY_TOKEN", token)
            with SyncEnvironmentClient(config, [url]) as client:
                if accepted:
                    assert client.environment().corpus_size == 6
                else:
                    with refused(TokenError, "401", "client.token_env"):
                        client.environment()
                    with refused(TokenError, "401"):
                        client.step(steps("a"))
                    assert client.stats.attempts == 2


def test_a_token_that_no_header_can_carry_is_refused_without_showing_it(monkeypatch):
    monkeypatch.setenv("QUERYLECT_TOKEN", "geheim\nX-Evil: 1")
    with refused(ConfigError, "QUERYLECT_TOKEN") as caught:
        SyncEnvironmentClient(PATIENT)
    assert "geheim" not in str(caught.value)


def test_replicas_of_different_indexes_are_an_error(small_environment, run_app, url):
    second_environment = Environment.open(small_environment)
    second_environment.index_hash = "another"
    with (
        run_app(create_app(second_environment, small_environment)) as second,
        SyncEnvironmentClient(PATIENT, [url, second]) as client,
    ):
        with refused(ConfigError, url, second, "another"):
            client.environment()
        with refused(ConfigError, url, second, "another"):
            client.step(steps("headache"))


def test_an_index_that_changes_during_a_run_is_an_error(scripted):
    def changed(answer):
        return {**answer, "index_hash": "another"}

    flapping, url = scripted
    flapping.play("pass", changed)
    with SyncEnvironmentClient(PATIENT, [url]) as client:
        assert client.step(steps("headache"))[0] is not None
        for call in (lambda: client.step(steps("headache")), lambda: client.search([SearchPlan.of("headache")])):
            with refused(ConfigError, url, "another"):
                call()


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "http://host:port"])
def test_unusable_urls_are_named(url):
    with refused(ConfigError, "client.urls", repr(url)):
        SyncEnvironmentClient(PATIENT, [url])


def test_a_client_without_urls_is_refused():
    with refused(ConfigError, "client.urls"):
        SyncEnvironmentClient(PATIENT, [])


def test_local_needs_a_url():
    with refused(ConfigError, "local_service"):
        SyncEnvironmentClient(ClientConfig())


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        (None, 0, 0),
        ("7", 7, 7),
        ("0.5", 0.5, 0.5),
        ("-3", 0, 0),
        ("nan", 0, 0),
        ("inf", 0, 0),
        ("soon", 0, 0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0, 0),
        ("Fri, 31 Dec 2199 23:59:59 GMT", 1e9, 1e10),
        ("Thu, 01 Jan 99999999999999999999 00:00:00 GMT", 0.0, 0.0),
    ],
)
def test_what_retry_after_says(header, low, high):
    assert low <= retry_after_seconds(header) <= high


def test_back_off_doubles_jitters_over_its_whole_range_and_is_bounded(dead, clock, monkeypatch):
    drawn = []

    def uniform(low, high):
        drawn.append((low, high))
        return high / 2

    monkeypatch.setattr("tenacity.wait.random", SimpleNamespace(uniform=uniform))
    assert stepping([dead], steps("a"))[0] == [None]
    assert drawn[:8] == [(0, high) for high in (0.25, 0.5, 1, 2, 4, 8, 10, 10)]
    assert clock.pauses[:8] == [high / 2 for _, high in drawn[:8]]


def test_the_pause_is_as_long_as_the_most_willing_replica_asks_for(new_app, run_app, clock):
    replicas = [Flapping(new_app()), Flapping(new_app())]
    for replica, seconds in zip(replicas, ("3", "2"), strict=True):
        replica.play((503, {"retry-after": seconds}, b""), "pass")
    with run_app(replicas[0]) as first, run_app(replicas[1]) as second:
        results, _ = stepping([first, second], steps("headache"))
    assert results[0] is not None
    assert clock.pauses == [2 + 0.25]


def test_a_cancelled_call_leaves_the_client_usable(scripted):
    async def run(url):
        async with EnvironmentClient(PATIENT, [url]) as client:
            await client.environment()
            call = asyncio.create_task(client.step(steps("headache")))
            while not flapping.posts:
                await asyncio.sleep(0.005)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return await client.step(steps("triptan headache"))

    flapping, url = scripted
    flapping.play("stall", "pass")
    assert asyncio.run(run(url))[0].reward == 1.0
