"""The circuit of a replica: it rests longer with each failure, and one request at a time tries whether it is back."""

import asyncio

import pytest
from querylect.configs.schema import ClientConfig
from querylect.envs.client import transport as breaker
from querylect.envs.client.client import EnvironmentClient, SyncEnvironmentClient
from querylect.envs.client.transport import Replica, to_ask
from querylect.errors import RequestError, TokenError

from ..raising import refused
from .test_client_outage import dead, steps  # noqa: F401 (a fixture)

PATIENT = ClientConfig(urls=["http://unused"], timeout=30.0, deadline=60.0)


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

        perf_counter = monotonic

    clock = Clock()
    monkeypatch.setattr(breaker, "time", clock)
    return clock


def names(replicas):
    return [replica.url for replica in replicas]


def test_rest_doubles_with_each_failure_and_ends_with_a_success(clock):
    replica = Replica("a")
    rests = []
    for _ in range(6):
        replica.fail(0.0)
        rests.append(replica.rests_until - clock.now)
    assert rests == [5, 10, 20, 40, 60, 60]
    replica.fail(300.0)
    assert replica.rests_until - clock.now == 300, "never earlier than the service asked for"
    assert replica.state == "open"
    clock.now += 300
    assert replica.state == "half-open"
    replica.succeed()
    assert replica.state == "closed"


def test_an_open_replica_is_not_asked_and_a_rested_one_is_tried_by_one_request(clock):
    a, b, c = (Replica(name) for name in "abc")
    assert [names(to_ask([a, b, c], turn)) for turn in range(3)] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    a.fail(0.0)
    assert names(to_ask([a, b, c], 0)) == ["b", "c"]
    clock.now += 5
    assert names(to_ask([a, b, c], 1)) == ["a", "b", "c"], "half-open: this request tries it first"
    a.begin()
    assert names(to_ask([a, b, c], 1)) == ["b", "c"], "and no other at the same time"
    a.end()
    assert names(to_ask([a, b, c], 1))[0] == "a"


def test_with_nobody_closed_the_longest_rested_is_asked_first(clock):
    a, b = Replica("a"), Replica("b")
    b.fail(0.0)
    clock.now += 1
    a.fail(0.0)
    assert names(to_ask([a, b], 0)) == ["b", "a"]
    clock.now += 4.5
    assert names(to_ask([a, b], 0)) == ["b"]


def test_a_dead_replica_costs_one_attempt_while_its_circuit_is_open(url, dead, clock):  # noqa: F811
    with SyncEnvironmentClient(PATIENT, [dead, url]) as client:
        client.environment()
        for n in range(10):
            assert client.step(steps(f"headache {n}"))[0] is not None
        assert (client.stats.failures, client.stats.opened) == (1, 1)
        clock.now += 5
        for n in range(10):
            assert client.step(steps(f"blood {n}"))[0] is not None
        assert (client.stats.failures, client.stats.opened) == (2, 1)
        assert client.last_failure.request_id
        assert client.last_failure.request_id in str(client.last_failure)


def test_a_cancelled_attempt_says_nothing_about_the_replica(run_app):
    async def stalling(scope, receive, send):
        assert scope["type"] == "http"
        await asyncio.sleep(20)

    async def run(url):
        async with EnvironmentClient(PATIENT, [url]) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.environment()
            return client._transport.replicas[0]

    with run_app(stalling) as url:
        replica = asyncio.run(run(url))
    assert (replica.state, replica.trying) == ("closed", False)


def test_a_refusal_is_an_answer(url):
    with SyncEnvironmentClient(PATIENT, [url]) as client:
        with refused(RequestError, "404", "'nothing'") as failed:
            client.questions("nothing")
        assert not isinstance(failed.value, TokenError)
        assert client._client._transport.replicas[0].state == "closed"


def test_requests_one_after_the_other_use_one_connection(url):
    with SyncEnvironmentClient(PATIENT, [url]) as client:
        for n in range(3):
            client.step(steps(f"headache {n}"))
        assert len(client._client._transport._http._transport._pool.connections) == 1


def test_a_wrong_clock_somewhere_does_not_cost_a_replica_for_years(clock):
    replica = Replica("a")
    replica.fail(1e9)
    assert replica.rests_until - clock.now == 600
