"""The batcher: one outcome for every plan, one search for many requests, a cache keyed by the whole plan."""

import asyncio
import threading

import pytest
from querylect.envs.environment import RankedHit, Ranking
from querylect.envs.plan import SearchPlan
from querylect.envs.server import batching
from querylect.envs.server.batching import Batcher, Metrics, OverloadedError


class Recorder:
    """Ranks k documents named after the plan, remembers its batches, and is paused until it is freed."""

    def __init__(self):
        self.batches, self.free, self.entered = [], threading.Event(), threading.Event()

    def rank(self, plans):
        self.batches.append([plan.probes[0].terms[0].text for plan in plans])
        self.entered.set()
        assert self.free.wait(60)
        if any("bad" in text for text in self.batches[-1]):
            raise ValueError("cannot search bad")
        names = [[f"{plan.probes[0].terms[0].text}-{i}" for i in range(plan.k)] for plan in plans]
        return [Ranking(RankedHit(name, 1.0) for name in row) for row in names]


def ask(batcher, *texts):
    """A request for one document of each text."""
    return asyncio.create_task(batcher.rank([SearchPlan.of(text, k=1) for text in texts]))


async def start_paused(batcher, search, *texts):
    """A request whose search has started and is paused."""
    request = ask(batcher, *(texts or ["first"]))
    await asyncio.to_thread(search.entered.wait)
    return request


async def release(search):
    """Resume the paused search, once the batcher has every request."""
    await asyncio.sleep(0)
    search.free.set()


def batched(test):
    """Run a test with a started batcher and its paused search."""

    def run():
        async def beside():
            search = Recorder()
            batcher = Batcher(search, Metrics())
            await batcher.start()
            try:
                await test(batcher, search)
            finally:
                search.free.set()
                await batcher.stop()

        asyncio.run(beside())

    return run


def ids(rankings):
    return [[hit.id for hit in ranking] for ranking in rankings]


@batched
async def test_requests_that_wait_together_are_searched_together_and_equal_plans_once(batcher, search):
    first = await start_paused(batcher, search)
    requests = [ask(batcher, f"t{i % 3}") for i in range(9)]
    late = ask(batcher, "first")
    await release(search)
    await asyncio.gather(first, late)
    assert [ids(await request) for request in requests] == [[[f"t{i % 3}-0"]] for i in range(9)]
    assert search.batches == [["first"], ["t0", "t1", "t2"]]


@batched
async def test_a_plan_that_fails_fails_only_the_requests_that_contain_it(batcher, search):
    first = await start_paused(batcher, search)
    failing, joined, fine = ask(batcher, "a", "bad"), ask(batcher, "bad"), ask(batcher, "a", "b")
    await release(search)
    await first
    for request in (failing, joined):
        with pytest.raises(ValueError, match="bad"):
            await request
    assert ids(await fine) == [["a-0"], ["b-0"]]
    with pytest.raises(ValueError, match="bad"):
        await ask(batcher, "bad")
    assert search.batches[-1] == ["bad"], "a failure is not cached"


@batched
async def test_a_request_that_was_cancelled_leaves_the_plans_to_others(batcher, search):
    first = await start_paused(batcher, search)
    leaving, staying = ask(batcher, "a"), ask(batcher, "a", "b")
    await asyncio.sleep(0)
    leaving.cancel()
    await release(search)
    await first
    assert ids(await staying) == [["a-0"], ["b-0"]]


@batched
async def test_a_full_queue_refuses_new_plans_and_lets_in_what_is_known(batcher, search):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "MAX_PENDING", 4 * SearchPlan.of("w0", k=1).work)
        pending = await start_paused(batcher, search, *(f"w{i}" for i in range(4)))
        assert not batcher.ready
        with pytest.raises(OverloadedError):
            await ask(batcher, "w0", "x")
    joined = ask(batcher, "w1")
    await release(search)
    assert ids(await joined) == [["w1-0"]], "what waits already takes no room"
    assert len(await pending) == 4
    assert batcher.ready
    assert len(await ask(batcher, *(f"z{i}" for i in range(6)))) == 6, "a large request is let in as a small one is"
    assert not any("x" in batch for batch in search.batches)


@batched
async def test_stopping_fails_what_waits_instead_of_leaving_it(batcher, search):
    requests = [ask(batcher, "running"), await start_paused(batcher, search, "queued"), ask(batcher, "later")]
    await asyncio.sleep(0)
    await batcher.stop()
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OverloadedError] * 3
    with pytest.raises(OverloadedError):
        await ask(batcher, "after")
