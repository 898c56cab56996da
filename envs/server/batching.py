"""Searches of many requests joined into one: the batcher and the ranking cache.

Invariant: every request gets the rankings of all its plans or one exception; no caller waits for ever. A batch takes a
turn of each waiting request, so that a long one delays no other; a plan of more work than a batch is searched in steps,
one in each of its turns. A plan that makes the search fail fails only the requests that contain it. All state belongs
to the event loop; a single worker thread calls the search functions.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from ...errors import EnvironmentUnavailableError
from ..byte_cache import ByteCache
from ..environment import Environment, PlanRanking
from ..plan import SearchPlan, plan_digest
from ..retrievers.base import STEP_WORK, Steps
from .metrics import Metrics

Key = str
"""Digest of the whole plan, every `k` of it included (envs/plan.py)."""

RANKING_BYTES, HIT_BYTES = 100, 104
"""What a ranking and each of its hits take; the document ids are the corpus' own."""
TURN_WORK, BATCH_WORK = STEP_WORK, 2 * STEP_WORK
"""After this work of one request others have their turn, and after that of a batch it is searched. With BM25 a turn
holds 128 plans of 450 characters, and a batch takes some tenths of a second; with a reranker it holds 256 pairs."""
MAX_BATCH = 1024
"""Most plans of a batch."""
OVERDUE_SECONDS = 20.0
"""The service is not ready once a request has waited this long for its first turn: clients wait for 30 s."""
LINGER_SECONDS, LINGER_SHARE = 0.02, 0.25
"""A batch waits until as many requests are there as the last one answered, since their clients will soon ask again,
but at most LINGER_SECONDS and this share of the last search's time: a lone client never waits, a slow encoder gets full
batches from many clients, and a fast retriever is not held up."""
GOING_DOWN = "the service is going down; ask another replica, or again after its restart"


class OverloadedError(Exception):
    """Too many plans wait, or the service is going down. `retry_after` is in whole seconds, at least 1."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def ranking_cache(max_bytes: int) -> ByteCache[Key, PlanRanking]:
    """A cache of rankings that takes at most `max_bytes` bytes."""
    return ByteCache(max_bytes, lambda _, hits: RANKING_BYTES + HIT_BYTES * len(hits))


@dataclass(slots=True, eq=False)
class _Request:
    """A request that waits for some plans."""

    plans: "set[_PendingPlan]"
    """Those that have no ranking yet."""
    untaken: "deque[_PendingPlan]"
    """Those that no batch has taken yet."""
    rankings: dict[Key, PlanRanking]
    """What it has, also from the cache."""
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Set when its last plan has its ranking, or with the exception of the first that failed."""
    arrived: float = field(default_factory=time.monotonic)
    had_turn: bool = False
    """Whether it has had a turn."""


@dataclass(slots=True, eq=False)
class _PendingPlan:
    key: Key
    plan: SearchPlan
    work: int
    requests: list[_Request] = field(default_factory=list)
    taken: bool = False
    """Whether it is in a batch."""
    ranked: bool = False
    steps: Steps[list[PlanRanking]] | None = None
    """The search of a plan of more work than BATCH_WORK, once it has begun."""
    seconds: float = 0.0
    """How long its steps took."""


class Batcher:
    """Collects the plans of concurrent requests and searches them together."""

    def __init__(self, environment: Environment, *, max_pending: int, cache_bytes: int, metrics: Metrics) -> None:
        self._environment = environment
        self._max_pending = max_pending
        self._metrics = metrics
        self.cache = ranking_cache(cache_bytes)
        self._queue: deque[_Request] = deque()
        """Requests with waiting plans, whose turn is next first; one that was given up has none left."""
        self._pending: dict[Key, _PendingPlan] = {}
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._new_requests = 0
        self._last_requests = 1
        self._seconds_per_plan = 0.001
        self._seconds = 0.0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="querylect-search")
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._task is not None and not self._task.done()

    @property
    def ready(self) -> bool:
        """Whether new plans are taken and no request has waited long for its first turn."""
        latest = time.monotonic() - OVERDUE_SECONDS
        overdue = any(request.untaken and not request.had_turn and request.arrived < latest for request in self._queue)
        return self.running and len(self._pending) < self._max_pending and not overdue

    async def start(self) -> None:
        """Begin to take plans."""
        self._task = asyncio.create_task(self._work(), name="querylect-batcher")

    async def stop(self) -> None:
        """Stop taking plans and fail those that still wait."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def search(self, plans: Sequence[SearchPlan], keys: Sequence[Key] | None = None) -> list[PlanRanking]:
        """Rank every plan, in order. A plan that is cached or already waiting is not searched again. `keys` are the
        digests of the plans, where the caller has them. Cancelled, it leaves no plan in the queue that nobody else
        waits for.

        Raises OverloadedError where `max_pending` plans wait already (none of these is taken then), and what the search
        function raised where one of these plans made it fail.

        Whether a request is accepted does not depend on its number of plans: if only requests that fit into the queue
        were accepted, small ones would keep it full, and a large one would never fit.
        """
        if not self.running:
            raise OverloadedError(GOING_DOWN)
        keys = keys if keys is not None else [plan_digest(plan) for plan in plans]
        by_key = dict(zip(keys, plans, strict=True))
        rankings = {key: hits for key in by_key if (hits := self.cache.get(key)) is not None}
        fresh = [key for key in by_key if key not in rankings and key not in self._pending]
        if fresh and len(self._pending) >= self._max_pending:
            self._metrics.plans.labels("refused").inc(len(plans))
            wait = math.ceil(len(self._pending) * self._seconds_per_plan)
            raise OverloadedError(
                f"{len(self._pending)} plans already wait, and more are taken while fewer than {self._max_pending} do; "
                "ask again later, or start another replica",
                retry_after=min(max(wait, 1), 30),
            )
        cached = sum(key in rankings for key in keys)
        self._metrics.plans.labels("cached").inc(cached)
        self._metrics.plans.labels("joined").inc(len(keys) - cached - len(fresh))
        if len(rankings) < len(by_key):
            for key in fresh:
                self._pending[key] = _PendingPlan(key, by_key[key], self._environment.work(by_key[key]))
            request = self._enqueue([self._pending[key] for key in by_key if key not in rankings], rankings)
            try:
                await request.done
            finally:
                self._drop(request)
        return [rankings[key] for key in keys]

    def _enqueue(self, plans: "list[_PendingPlan]", rankings: dict[Key, PlanRanking]) -> _Request:
        """A request for these plans, in the queue where any of them is not taken yet; `rankings` gets theirs."""
        request = _Request(set(plans), deque(pending for pending in plans if not pending.taken), rankings)
        for pending in plans:
            pending.requests.append(request)
        self._metrics.queue.set(len(self._pending))
        if request.untaken:
            self._queue.append(request)
            self._new_requests += 1
            self._arrived.set()
            if self._new_requests >= self._last_requests or len(self._pending) >= MAX_BATCH:
                self._full.set()
        return request

    def _drop(self, request: _Request) -> None:
        """Forget a request that is answered, has failed or was given up, and the plans that only it waits for."""
        for pending in request.plans:
            pending.requests.remove(request)
            if not pending.requests and not pending.taken:
                del self._pending[pending.key]
        request.plans.clear()
        request.untaken.clear()
        self._metrics.queue.set(len(self._pending))

    async def _work(self) -> None:
        try:
            while True:
                if not self._arrived.is_set():
                    await self._arrived.wait()
                    with suppress(TimeoutError):
                        # not wait_for, which forgets that it was cancelled where what it waits for comes meanwhile
                        async with asyncio.timeout(min(LINGER_SECONDS, LINGER_SHARE * self._seconds)):
                            await self._full.wait()
                batch = self._next_batch()
                self._full.clear()
                self._new_requests = 0
                if not self._queue:
                    self._arrived.clear()
                if batch and batch[0].work > BATCH_WORK:
                    await self._search_step(batch[0])
                elif batch:
                    await self._search_batch(batch)
                self._metrics.queue.set(len(self._pending))
        finally:
            self._fail(_holders(self._pending.values()), OverloadedError(GOING_DOWN))
            self._pending.clear()
            self._queue.clear()
            self._metrics.queue.set(0)

    async def _search_batch(self, batch: "Sequence[_PendingPlan]") -> None:
        """Search plans together; where that fails, those of each request by themselves, so that none fails for the plan
        of another."""
        self._last_requests = len(_holders(batch))
        try:
            await self._search(batch)
        except EnvironmentUnavailableError as error:  # a service behind the retriever is down: no plan is at fault
            self._fail(_holders(batch), error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the requests that hold the plan report it
            requests = _holders(batch)
            if len(requests) == 1:
                self._fail(requests, error)
            for request in requests:
                try:
                    await self._search([pending for pending in batch if pending in request.plans])
                except Exception as its_error:  # noqa: BLE001 - as above
                    self._fail([request], its_error)
        for pending in batch:
            if not pending.ranked:  # it failed; who came meanwhile and holds it gets another search
                self._wait_again(pending)

    async def _search(self, plans: "Sequence[_PendingPlan]") -> None:
        """Search plans, and give the rankings to their requests. Raises what the search raises."""
        if not plans:
            return
        started = time.perf_counter()
        rankings = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._environment.search, [pending.plan for pending in plans]
        )
        if len(rankings) != len(plans):
            raise RuntimeError(f"search returned {len(rankings)} rankings for {len(plans)} plans")
        self._settle(plans, rankings, time.perf_counter() - started)

    async def _search_step(self, pending: _PendingPlan) -> None:
        """One step of a long plan. Where it is not the last, the plan waits for the next turn of its requests, unless
        all of them are gone."""
        requests = list(pending.requests)
        started = time.perf_counter()
        try:
            ranking = await asyncio.get_running_loop().run_in_executor(self._thread, self._step, pending)
            pending.seconds += time.perf_counter() - started
            if ranking is not None:
                self._settle([pending], [ranking], pending.seconds)
        except Exception as error:  # noqa: BLE001 - as in `_search_batch`
            pending.steps = None
            self._fail(requests, error)
        if not pending.ranked:
            self._wait_again(pending)
        self._queue_again(requests)

    def _step(self, pending: _PendingPlan) -> PlanRanking | None:
        """One step of a long plan's search: its ranking, or None where more is to be done."""
        if pending.steps is None:
            pending.steps = self._environment.search_in_steps([pending.plan])
        try:
            next(pending.steps)
        except StopIteration as end:
            rankings: list[PlanRanking] = end.value
            return rankings[0]
        return None

    def _next_batch(self) -> "list[_PendingPlan]":
        """A turn of each request that waits, the longest without one first, up to BATCH_WORK and MAX_BATCH plans. A
        step of a long plan is a batch of its own, after which its requests are the last in the queue."""
        batch: list[_PendingPlan] = []
        work = 0
        while self._queue and work < BATCH_WORK and len(batch) < MAX_BATCH:
            request = self._queue.popleft()
            turn_ends = min(work + TURN_WORK, BATCH_WORK)
            while request.untaken and work < turn_ends and len(batch) < MAX_BATCH:
                pending = request.untaken[0]
                starts_step = pending.work > BATCH_WORK and not pending.taken
                if starts_step and batch:
                    self._queue.appendleft(request)
                    return batch
                request.untaken.popleft()
                request.had_turn = True
                if not pending.taken:
                    pending.taken = True
                    batch.append(pending)
                    work += pending.work
                if starts_step:
                    return batch
            if request.untaken:
                self._queue.append(request)
        return batch

    def _settle(self, plans: "Sequence[_PendingPlan]", rankings: Sequence[PlanRanking], seconds: float) -> None:
        """Give the rankings of plans, searched in `seconds`, to the cache and to all requests that hold them."""
        self._seconds = seconds
        self._seconds_per_plan += 0.2 * (seconds / len(plans) - self._seconds_per_plan)
        self._metrics.plans.labels("searched").inc(len(plans))
        self._metrics.batches.observe(len(plans))
        self._metrics.search_seconds.observe(seconds)
        for pending, ranking in zip(plans, rankings, strict=True):
            pending.ranked = True
            del self._pending[pending.key]
            self.cache.put(pending.key, ranking)
            for request in pending.requests:
                request.rankings[pending.key] = ranking
                request.plans.remove(pending)
                if not request.plans and not request.done.done():
                    request.done.set_result(None)

    def _wait_again(self, pending: _PendingPlan) -> None:
        """Put a plan without a ranking first among those that its requests wait for; without a request, forget it."""
        pending.taken = False
        for request in pending.requests:
            if pending not in request.untaken:
                request.untaken.appendleft(pending)
        self._queue_again(pending.requests)
        if not pending.requests:
            del self._pending[pending.key]

    def _queue_again(self, requests: Iterable[_Request]) -> None:
        """Put requests that have waiting plans at the end of the queue, unless they stand in it."""
        for request in requests:
            if request.untaken and request not in self._queue:
                self._queue.append(request)
                self._arrived.set()

    def _fail(self, requests: Iterable[_Request], error: Exception) -> None:
        for request in requests:
            if not request.done.done():
                request.done.set_exception(error)
            self._drop(request)


def _holders(plans: "Iterable[_PendingPlan]") -> list[_Request]:
    """The requests that hold any of these plans, each once."""
    return list(dict.fromkeys(request for pending in plans for request in pending.requests))
