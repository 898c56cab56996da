"""The client against servers that are dead, slow, overloaded, flapping or wrong: an outage is never a reward."""

import json
import shutil
import socket
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from querylect.configs.schema import ClientConfig, DatasetConfig
from querylect.envs.client import client as client_module
from querylect.envs.client.client import EnvironmentClient, Step
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.server.app import create_app
from querylect.errors import ConfigError, EnvironmentUnavailableError, RequestError, TokenError

from ..pauses import PausesOnly
from ..raising import refused

pytestmark = pytest.mark.server

PATIENT = ClientConfig(urls=["http://unused"], deadline=2400.0)


@pytest.fixture
def pauses(monkeypatch):
    """The pauses of the clients of `connect`, each the longest that the jitter allows."""
    monkeypatch.setattr(client_module.random, "uniform", lambda low, high: high)
    return PausesOnly()


@pytest.fixture
def connect(pauses):
    """A function that gives a client of these URLs under that clock."""
    return lambda *urls, config=PATIENT: EnvironmentClient(config, urls, pauses.clock)


@pytest.fixture
def dead():
    """A URL where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


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
        elif callable(behaviour):
            await self._changed(behaviour, scope, receive, send)
        else:
            status, headers, body = behaviour
            headers = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _changed(self, change, scope, receive, send):
        """The real answer with its JSON changed."""
        parts = []

        async def collect(message):
            parts.append(message.get("body", b""))

        await self.app(scope, receive, collect)
        body = json.dumps(change(json.loads(b"".join(parts)))).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def scripted(environment, run_app):
    """A service that plays scripts, and its URL."""
    flapping = Flapping(create_app(environment))
    with run_app(flapping) as url:
        yield flapping, url


def steps(*texts, question="q-head"):
    return [Step(question_id=question, plan=SearchPlan.of(text)) for text in texts]


def test_many_steps_go_in_parts_and_come_back_in_order(scripted, connect, monkeypatch):
    monkeypatch.setattr(client_module, "MAX_PLANS_PER_REQUEST", 8)
    flapping, url = scripted
    flapping.play("pass")
    batch = [step for n in range(10) for step in (*steps(f"headache {n}"), *steps("glucose", question="q-sugar"))]
    with connect(url) as client:
        results = client.step(batch)
    assert flapping.posts == 3
    assert [result.question_id for result in results] == ["q-head", "q-sugar"] * 10
    assert [result.reward for result in results[1::2]] == [1.0] * 10


def test_a_dead_service_makes_searches_fail_after_growing_pauses(dead, connect, pauses):
    url = dead.replace("//", "//user:password@")
    with connect(url, config=PATIENT.model_copy(update={"deadline": 35.0})) as client:  # own clock
        assert client.step([]) == []
        assert client.last_failure is None
        assert client.step(steps("a", "b", "c")) == [None, None, None]
        assert f"{dead}: ConnectError" in client.last_failure, "without the password"
        assert pauses.pauses == [0.25, 0.5, 1, 2, 4, 8, 10], "another 10 seconds would be beyond the deadline"
        client.give_up_soon()
        assert client.step(steps("a")) == [None]
        assert len(pauses.pauses) == 7, "no more rounds"
        with refused(EnvironmentUnavailableError, dead, "ConnectError", "querylect serve"):
            client.search([SearchPlan.of("a")])


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ((429, {}, b""), "HTTP 429"),
        ((200, {}, b"<html>welcome to the proxy</html>"), "Invalid JSON"),
        ((200, {"content-length": "900"}, b"{"), "Error"),
        ((200, {}, b"{}"), "index_hash"),
    ],
)
def test_no_failure_becomes_a_reward(scripted, connect, behaviour, reason):
    flapping, url = scripted
    flapping.play(behaviour)
    with connect(url) as client:
        assert client.step(steps("headache")) == [None]
        assert reason in client.last_failure
    assert flapping.posts > 2


def changed(**fields):
    return lambda answer: {**answer, "results": [{**result, **fields} for result in answer["results"]]}


def test_an_answer_that_is_no_reward_is_a_failure(scripted, connect):
    flapping, url = scripted
    with connect(url) as client:
        for name, value in [
            ("reward", float("nan")),
            ("reward", 1.5),
            ("reward", True),
            ("ranking", [{"id": "a", "score": "1"}]),
        ]:
            flapping.play(changed(**{name: value}))
            assert client.step(steps("headache", "migraine")) == [None, None]
            assert f"results.0.{name}" in client.last_failure


def test_a_flapping_service_is_asked_until_it_answers(scripted, connect, pauses):
    flapping, url = scripted
    flapping.play((503, {"retry-after": "3"}, b""), (500, {}, b""), (200, {}, b"[]"), "pass")
    with connect(url) as client:
        (result,) = client.step(steps("triptan headache"))
    assert result.reward == 1.0
    assert pauses.pauses == [3.25, 0.5, 1.0]


def test_another_replica_answers_for_a_dead_one(dead, url, connect, pauses):
    with connect(dead, url) as client:
        assert client.info().corpus_size == 6
        for _ in range(3):
            assert client.step(steps("triptan headache"))[0].reward == 1.0
    assert pauses.pauses == []


def test_a_wrong_request_is_an_error_at_once(url, connect, pauses):
    with connect(url) as client:
        for call in (
            lambda: client.step(steps("a", question="nobody")),
            lambda: client.step(steps("a"), metrics=["fame@3"]),
            lambda: client.questions("dev"),
            lambda: client.search([SearchPlan.of("a", k=2**18)]),
        ):
            with pytest.raises(RequestError):
                call()
    assert pauses.pauses == []


def test_the_token_is_taken_from_its_variable(environment, run_app, monkeypatch, tmp_path):
    config = PATIENT.model_copy(update={"token_env": "MY_TOKEN"})
    (tmp_path / "token").write_text(" right\n")
    with run_app(create_app(environment, token="right")) as url:
        for token in ("", "wrong"):
            monkeypatch.setenv("MY_TOKEN", token)
            with EnvironmentClient(config, [url]) as client, pytest.raises(TokenError):
                client.step(steps("headache"))
        monkeypatch.setenv("MY_TOKEN", "")
        monkeypatch.setenv("MY_TOKEN_FILE", str(tmp_path / "token"))
        with EnvironmentClient(config, [url]) as client:
            assert client.step(steps("triptan headache"))[0].reward == 1.0
    monkeypatch.setenv("MY_TOKEN", "geheim\nX-Evil: 1")
    with refused(ConfigError, "MY_TOKEN"):
        EnvironmentClient(config, [url])


def test_replicas_that_score_differently_are_refused(small_environment, environment, url, tmp_path, run_app, connect):
    """The same corpus and index, and another grade for one document."""
    shutil.copytree(small_environment.dataset.path, tmp_path / "data")
    qrels = tmp_path / "data" / "qrels" / "test.tsv"
    qrels.write_text(qrels.read_text().replace("triptan\t2", "triptan\t1"))
    dataset = DatasetConfig(path=str(tmp_path / "data"))
    other = Environment.open(small_environment.model_copy(update={"dataset": dataset}))
    hashes = [each.info().settings_hash for each in (environment, other)]
    with (
        run_app(create_app(other)) as other_url,
        connect(url, other_url) as client,
        refused(ConfigError, url, other_url, *hashes),
    ):
        client.step([step for n in range(300) for step in steps(f"headache {n}")])


def test_closing_a_client_ends_the_calls_of_other_threads(connect):
    """Ctrl-C in the main thread closes the client; a thread that waited on would keep the process from ending."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        client = connect(f"http://127.0.0.1:{silent.getsockname()[1]}")
        waiting = pool.submit(client.step, steps("a"))
        with silent.accept()[0] as request:
            assert request.recv(100)
            client.close()
            with pytest.raises(CancelledError):
                waiting.result(60)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://localhost:80a"])
def test_unusable_urls_are_named(url):
    with refused(ConfigError, "client.urls"):
        EnvironmentClient(PATIENT, [url])
