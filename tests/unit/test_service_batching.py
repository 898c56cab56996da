"""The batcher: one outcome for every plan, one search for many requests, a cache keyed by the whole plan."""

import asyncio
import threading
import tracemalloc
from contextlib import asynccontextmanager
from functools import wraps
from inspect import Signature, signature

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.envs.byte_cache import ENTRY_BYTES
from querylect.envs.environment import RankedHit
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.retrievers.base import work_of_texts
from querylect.envs.server import batching
from querylect.envs.server.batching import HIT_BYTES, RANKING_BYTES, Batcher, OverloadedError, ranking_cache
from querylect.envs.server.metrics import Metrics


class Recorder:
    """A search that ranks k documents named after the plan, remembers its batches and can be paused."""

    def __init__(self, paused=False):
        self.batches = []
        self.free = threading.Event()
        if not paused:
            self.free.set()
        self.entered = threading.Event()

    def work(self, plan):
        return sum(map(work_of_texts, plan.probes))

    def search(self, plans):
        self.batches.append([plan.probes[0].terms[0].text for plan in plans])
        self.entered.set()
        assert self.free.wait(60)
        if any("bad" in text for text in self.batches[-1]):
            raise ValueError("cannot search bad")
        return [[RankedHit(f"{p.probes[0].terms[0].text}-{i}", 1.0 / (i + 1)) for i in range(p.k)] for p in plans]


def ask(batcher, *texts):
    """A request for one document of each text."""
    return asyncio.create_task(batcher.search([SearchPlan.of(text, k=1) for text in texts]))


async def start_paused(batcher, search, *texts):
    """A request whose search has started and is paused."""
    request = ask(batcher, *(texts or ["first"]))
    await asyncio.to_thread(search.entered.wait)
    return request


async def release(search):
    """Resume the paused search, once the batcher has every request."""
    await asyncio.sleep(0)
    search.free.set()


def batched(searching=Recorder, paused=False, max_pending=100):
    """Run a test with a started batcher, its search and its own fixtures."""

    def decorate(test):
        @wraps(test)
        def run(**fixtures):
            async def beside():
                search = searching(paused)
                batcher = Batcher(search, max_pending=max_pending, cache_bytes=10**6, metrics=Metrics())
                await batcher.start()
                try:
                    await asyncio.wait_for(test(batcher, search, **fixtures), 10)
                finally:
                    search.free.set()
                    await batcher.stop()

            asyncio.run(beside())

        _, _, *parameters = signature(test).parameters.values()
        run.__signature__ = Signature(parameters)
        return run

    return decorate


def ids(rankings):
    return [[hit.id for hit in ranking] for ranking in rankings]


@batched()
async def test_the_same_text_with_another_k_is_another_ranking(batcher, search):
    rankings = [ids(await batcher.search([SearchPlan.of("a", k=k)])) for k in (1, 3, 2)]
    assert rankings == [[["a-0"]], [["a-0", "a-1", "a-2"]], [["a-0", "a-1"]]]


@pytest.mark.parametrize(
    "changed",
    [
        SearchPlan.of("b"),
        SearchPlan.of("a", k=9),
        SearchPlan.of("a").model_copy(update={"fuse": "rrf"}),
        SearchPlan(probes=(Probe(terms=(Term(text="a", weight=0.5),)),)),
        SearchPlan(probes=(Probe(terms=(Term(text="a"),), k=5),)),
        SearchPlan(probes=(Probe(terms=(Term(text="a"),), source="x"),)),
        SearchPlan(probes=(Probe(terms=(Term(text="a"), Term(text="a"))),)),
    ],
)
@batched()
async def test_every_part_of_a_plan_is_part_of_its_cache_key(batcher, search, changed):
    for plans in ([SearchPlan.of("a")], [changed], [SearchPlan.of("a"), changed]):
        await batcher.search(plans)
    assert len(search.batches) == 2


@batched(paused=True)
async def test_requests_that_wait_together_are_searched_together_and_equal_plans_once(batcher, search):
    first = await start_paused(batcher, search)
    requests = [ask(batcher, f"t{i % 3}") for i in range(9)]
    late = ask(batcher, "first")
    await release(search)
    await asyncio.gather(first, late)
    assert [ids(await request) for request in requests] == [[[f"t{i % 3}-0"]] for i in range(9)]
    assert search.batches == [["first"], ["t0", "t1", "t2"]]


@batched()
async def test_a_batch_waits_for_as_many_requests_as_the_last_one_answered(batcher, search, monkeypatch):
    """Three clients that ask again one after the other, once they are answered, share every search."""
    monkeypatch.setattr(batching, "LINGER_SECONDS", 5.0)
    monkeypatch.setattr(batching, "LINGER_SHARE", 10.0**6)

    async def client(number):
        for n in range(4):
            for _ in range(20 * number if n else 0):
                await asyncio.sleep(0)
            await ask(batcher, f"{number}-{n}")

    await asyncio.gather(*(client(number) for number in range(3)))
    assert [len(batch) for batch in search.batches] == [3, 3, 3, 3]


@batched()
async def test_a_lone_client_never_waits_for_others(batcher, search, monkeypatch):
    monkeypatch.setattr(batching, "LINGER_SECONDS", 1000.0)
    monkeypatch.setattr(batching, "LINGER_SHARE", 10.0**6)
    for n in range(5):
        await ask(batcher, str(n))


@batched()
async def test_a_batch_is_never_longer_than_allowed_and_all_are_answered_in_order(batcher, search, monkeypatch):
    monkeypatch.setattr(batching, "MAX_BATCH", 10)
    assert ids(await ask(batcher, *(f"t{i}" for i in range(25)))) == [[f"t{i}-0"] for i in range(25)]
    assert [len(batch) for batch in search.batches] == [10, 10, 5]


@batched(paused=True)
async def test_a_plan_that_cannot_be_searched_fails_only_the_requests_that_hold_it(batcher, search):
    first = await start_paused(batcher, search)
    requests = [ask(batcher, *texts) for texts in (["a", "b"], ["c", "bad"], ["d"], ["e", "f", "g"])]
    await release(search)
    await first
    good, failed, *unaffected = await asyncio.gather(*requests, return_exceptions=True)
    assert isinstance(failed, ValueError)
    assert ids(good) == [["a-0"], ["b-0"]]
    assert [ids(ranking) for ranking in unaffected] == [[["d-0"]], [["e-0"], ["f-0"], ["g-0"]]]


@batched(max_pending=1000)
async def test_a_search_that_always_fails_costs_a_bounded_number_of_searches(batcher, search):
    with pytest.raises(ValueError, match="bad"):
        await ask(batcher, *(f"bad{i}" for i in range(1000)))
    assert len(search.batches) <= 65


@batched(paused=True, max_pending=1000)
async def test_the_plans_of_one_request_fail_no_other_however_many_they_are(batcher, search):
    first = await start_paused(batcher, search)
    bad = [ask(batcher, *(f"bad{n}-{i}" for i in range(20))) for n in range(5)]
    good = [ask(batcher, f"good{n}") for n in range(20)]
    await release(search)
    await first
    failed = await asyncio.gather(*bad, return_exceptions=True)
    assert [type(outcome) for outcome in failed] == [ValueError] * 5
    assert [ids(ranking) for ranking in await asyncio.gather(*good)] == [[[f"good{n}-0"]] for n in range(20)]


@batched(paused=True)
async def test_a_request_that_joins_a_plan_does_not_fail_for_what_was_searched_beside_it(batcher, search):
    failing = await start_paused(batcher, search, "bad", "good")
    joining = ask(batcher, "good")
    await release(search)
    with pytest.raises(ValueError, match="bad"):
        await failing
    assert ids(await joining) == [["good-0"]]


@batched(paused=True)
async def test_a_long_request_is_searched_in_turns_with_those_that_came_later(batcher, search):
    passage = " " + "x" * 30_000
    first = await start_paused(batcher, search)
    long = ask(batcher, *(f"long{n}{passage}" for n in range(9)))
    short_requests = [ask(batcher, f"short{n}") for n in range(3)]
    await release(search)
    await asyncio.gather(first, long, *short_requests)
    batches = [[text.split()[0] for text in batch] for batch in search.batches]
    assert batches[1] == ["long0", "long1", "long2", "short0", "short1", "short2", "long3", "long4"]
    assert batches[2:] == [["long5", "long6", "long7", "long8"]]


@batched(paused=True)
async def test_turns_are_shared_by_the_work_that_is_stated_for_a_plan(batcher, search):
    """Of short texts that cost a lot, a turn takes as few as of long ones."""
    search.work = lambda plan: batching.TURN_WORK // 2 if "costly" in plan.texts[0] else 1
    first = await start_paused(batcher, search)
    requests = [ask(batcher, *(f"costly{n}" for n in range(5))), ask(batcher, "cheap")]
    await release(search)
    await asyncio.gather(first, *requests)
    assert search.batches == [["first"], ["costly0", "costly1", "cheap", "costly2", "costly3"], ["costly4"]]


class Stepping(Recorder):
    """Ranks a long plan in three steps, each of which can be paused like a search."""

    closed = False

    def search_in_steps(self, plans):
        (plan,) = plans
        try:
            for step in range(3):
                self.batches.append(f"{plan.texts[0]} {step}")
                self.entered.set()
                assert self.free.wait(60)
                if "bad" in plan.texts[0]:
                    raise ValueError("cannot search bad")
                if step < 2:
                    yield
        finally:
            self.closed = True
        return [[RankedHit(plan.texts[0], 1.0)]]

    def work(self, plan):
        return batching.BATCH_WORK + 1 if "long" in plan.texts[0] else 1


@batched(Stepping, paused=True)
async def test_a_plan_of_much_work_is_searched_in_steps_with_others_in_between(batcher, search):
    long = await start_paused(batcher, search, "long", "beside", "long2")
    requests = [ask(batcher, text) for text in ("a", "b", "long")]
    await release(search)
    assert [ids(await request) for request in requests] == [[["a-0"]], [["b-0"]], [["long"]]]
    assert ids(await long) == [["long"], ["beside-0"], ["long2"]]
    assert batcher.ready
    steps = [batch for batch in search.batches if isinstance(batch, str)]
    assert steps[:2] == ["long 0", "long 1"]
    once = [f"{text} {step}" for text in ("long", "long2") for step in range(3)]
    assert sorted(steps) == once, "no step is done twice, though two requests wait for one plan"
    searched = search.batches.index
    assert max(searched(batch) for batch in search.batches if "a" in batch or "b" in batch) < searched("long 2")


@batched(Stepping, paused=True)
async def test_a_long_plan_of_a_client_that_left_is_not_searched_to_its_end(batcher, search):
    long = await start_paused(batcher, search, "long")
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
    search.free.set()
    await ask(batcher, "after")
    assert batcher.ready
    assert search.batches == ["long 0", ["after"]]
    assert search.closed


@batched(Stepping, paused=True)
async def test_a_long_plan_that_fails_fails_its_request_alone_and_may_be_asked_again(batcher, search):
    failing = await start_paused(batcher, search, "long bad", "beside")
    joining, unrelated = ask(batcher, "long bad"), ask(batcher, "other")
    await release(search)
    for request in (failing, joining):
        with pytest.raises(ValueError, match="bad"):
            await request
    assert ids(await unrelated) == [["other-0"]]
    assert search.batches.count("long bad 0") == 2, "whoever joined while it failed gets another search"


@batched(paused=True, max_pending=6)
async def test_what_was_given_up_is_not_searched_unless_somebody_else_waits_for_it(batcher, search):
    first = await start_paused(batcher, search)
    leaving, staying = ask(batcher, *(f"l{n}" for n in range(4))), ask(batcher, "l2", "s")
    await asyncio.sleep(0)
    assert not batcher.ready, "six plans wait"
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert batcher.ready
    search.free.set()
    await asyncio.gather(first, staying)
    assert search.batches == [["first"], ["l2", "s"]]


@batched(paused=True)
async def test_a_service_is_not_ready_while_a_request_waits_too_long_for_its_first_turn(batcher, search, monkeypatch):
    monkeypatch.setattr(batching, "OVERDUE_SECONDS", 0.0)
    assert batcher.ready
    first = await start_paused(batcher, search)
    assert batcher.ready, "nobody waits"
    second = ask(batcher, "second")
    while batcher.ready:
        await asyncio.sleep(0)
    search.free.set()
    await asyncio.gather(first, second)
    assert batcher.ready


@batched()
async def test_a_failure_is_not_cached(batcher, search):
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            await ask(batcher, "bad")
    assert len(search.batches) == 2


@batched()
async def test_too_few_rankings_are_an_error_not_a_shifted_answer(batcher, search, monkeypatch):
    monkeypatch.setattr(Recorder, "search", lambda self, plans: [])
    with pytest.raises(RuntimeError, match=r"0 rankings.*1 plans"):
        await ask(batcher, "a")


@batched(paused=True, max_pending=4)
async def test_a_full_queue_refuses_the_whole_request_and_says_when_to_come_back(batcher, search):
    pending = await start_paused(batcher, search, *(f"w{i}" for i in range(4)))
    with pytest.raises(OverloadedError, match="4 plans") as refused:
        await ask(batcher, "w0", "x")
    assert 1 <= refused.value.retry_after <= 30
    joined = ask(batcher, "w1")
    await release(search)
    assert ids(await joined) == [["w1-0"]], "what waits already takes no room"
    assert len(await pending) == 4
    assert len(await ask(batcher, *(f"z{i}" for i in range(4)))) == 4
    assert not any("x" in batch for batch in search.batches)


@asynccontextmanager
async def busy_clients(batcher):
    """(two clients that send requests all the time, a function that waits until they have sent so many plans)."""
    count = 0

    async def client():
        nonlocal count
        while True:
            await ask(batcher, f"s{(count := count + 1)}")

    async def wait_for_plans(enough):
        while count < enough:
            await asyncio.sleep(0)

    clients = [asyncio.create_task(client()) for _ in range(2)]
    try:
        yield clients, wait_for_plans
    finally:
        for task in clients:
            task.cancel()


@batched(max_pending=4)
async def test_a_large_request_is_let_in_exactly_when_a_small_one_is(batcher, search):
    """Small requests keep one plan waiting all the time: there is never room for all of one with more plans than may
    wait."""
    async with busy_clients(batcher) as (_, wait_for_plans):
        await wait_for_plans(5)
        assert ids(await ask(batcher, *(f"l{i}" for i in range(6)))) == [[f"l{i}-0"] for i in range(6)]


@batched(paused=True)
async def test_stopping_fails_what_waits_instead_of_leaving_it(batcher, search):
    requests = [ask(batcher, "running"), await start_paused(batcher, search, "queued"), ask(batcher, "later")]
    await asyncio.sleep(0)
    await batcher.stop()
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OverloadedError] * 3
    with pytest.raises(OverloadedError):
        await ask(batcher, "after")


@batched()
async def test_stopping_ends_however_busy_the_clients_are(batcher, search):
    """New plans come in the very moment in which the batcher begins to stop, and while it stops."""
    async with busy_clients(batcher) as (clients, wait_for_plans):
        await wait_for_plans(49)
        await asyncio.wait_for(batcher.stop(), 5)
        outcomes = await asyncio.gather(*clients, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OverloadedError] * 2


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 35)), max_size=60), st.integers(0, 9000))
def test_the_cache_gives_back_what_was_put_and_never_holds_more_than_its_room(puts, capacity):
    cache = ranking_cache(capacity)
    newest = {}
    for name, length in puts:
        hits = tuple(RankedHit(str(i), 0.0) for i in range(length))
        cache.put(name, hits)
        newest[name] = hits
        cached = {n: ranking for n in newest if (ranking := cache.get(n)) is not None}
        assert all(ranking == newest[n] for n, ranking in cached.items())
        assert sum(ENTRY_BYTES + RANKING_BYTES + HIT_BYTES * len(ranking) for ranking in cached.values()) == cache.bytes
        assert cache.bytes <= capacity
        assert len(cache) == len(cached)


def test_the_cache_drops_what_was_not_asked_for_the_longest():
    cache = ranking_cache(2 * (ENTRY_BYTES + RANKING_BYTES))
    for key in (b"a", b"b"):
        cache.put(key, ())
    cache.get(b"a")
    cache.put(b"c", ())
    assert [cache.get(key) for key in (b"a", b"b", b"c")] == [(), None, ()]
    assert (cache.hits, cache.misses) == (3, 1)


def test_the_bytes_that_the_cache_counts_are_the_bytes_that_it_takes():
    """Measured by the allocator, with scores that no other ranking shares: counted too low, memory would run out."""
    names = [f"document-{i}" for i in range(10)]
    cache = ranking_cache(10**9)
    tracemalloc.start()
    baseline, _ = tracemalloc.get_traced_memory()
    for n in range(3000):
        cache.put(n.to_bytes(24, "big"), tuple(RankedHit(name, n + i / 7) for i, name in enumerate(names)))
    taken = tracemalloc.get_traced_memory()[0] - baseline
    tracemalloc.stop()
    assert 0.7 * cache.bytes < taken <= cache.bytes
