"""Searches of many requests joined into one: the batcher and the ranking cache.

Invariant: every request gets the rankings of all its plans or one exception; no caller waits for ever. A batch takes a
turn of each waiting request, so that a long one holds nobody up; a plan of more work than a batch is searched in steps,
one in each of its turns. A plan that makes the search fail fails no request but those that hold it. All state belongs
to the event loop; one worker thread, and only it, calls the search functions.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from ...errors import EnvironmentUnavailableError
from ..byte_cache import ByteCache
from ..environment import PlanRanking
from ..plan import SearchPlan, plan_digest
from ..retrievers.base import STEP_WORK, Steps, work_of_texts
from .metrics import Metrics

Search = Callable[[Sequence[SearchPlan]], Sequence[PlanRanking]]
SearchInSteps = Callable[[Sequence[SearchPlan]], Steps[Sequence[PlanRanking]]]
Work = Callable[[SearchPlan], int]
"""What searching a plan costs (retrievers/base.py, `work_of`)."""
Key = str
"""Digest of the whole plan, every `k` of it included (envs/plan.py)."""

RANKING_BYTES, HIT_BYTES = 100, 104
"""What a ranking and each of its hits take; the document ids are the corpus' own."""
TURN_WORK, BATCH_WORK = STEP_WORK, 2 * STEP_WORK
"""After this work of one request others have their turn, and after that of a batch it is searched. With BM25 a turn
holds 128 plans of 450 characters, and a batch takes some tenths of a second; with a reranker it holds 256 pairs."""
OVERDUE_SECONDS = 20.0
"""Where a request has waited this long for its first turn, the service is not ready: clients wait for 30 s."""
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

    plans: "list[_PendingPlan]"
    """Those without an outcome when it came."""
    done: "asyncio.Future[None]"
    """Set when the last of them has its ranking, or with the exception of the first that failed."""
    open: int
    """How many have no ranking yet."""
    untaken: "deque[_PendingPlan]"
    """Those that no batch has taken yet."""
    arrived: float
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
    steps: Steps[Sequence[PlanRanking]] | None = None
    """The search of a plan of more work than BATCH_WORK, once it has begun."""
    seconds: float = 0.0
    """How long its steps took."""
    ranking: PlanRanking = field(default_factory=PlanRanking)


class Batcher:
    """Collects the plans of concurrent requests and searches them together."""

    def __init__(
        self,
        search: Search,
        *,
        max_pending: int,
        cache_bytes: int,
        search_in_steps: SearchInSteps | None = None,
        work: Work = lambda plan: sum(map(work_of_texts, plan.probes)),
        max_batch: int = 1024,
        linger: float = LINGER_SECONDS,
        metrics: Metrics | None = None,
    ) -> None:
        """`search_in_steps` is for plans of more work than BATCH_WORK; None searches them like all others. `linger`, in
        seconds, is how long the first plan of a batch waits for others at most."""
        self._search, self._search_in_steps, self._plan_work = search, search_in_steps, work
        self._max_pending = max_pending
        self._max_batch = max_batch
        self._linger = linger
        self._metrics = metrics or Metrics()
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

        A request with one plan is let in exactly when a request with a thousand is. Were the queue's room left to
        decide, small requests would fill it again and again before a large one ever fitted.
        """
        if not self.running:
            raise OverloadedError(GOING_DOWN)
        keys = keys if keys is not None else [plan_digest(plan) for plan in plans]
        by_key = dict(zip(keys, plans, strict=True))
        cached = {key: hits for key in by_key if (hits := self.cache.get(key)) is not None}
        fresh = [key for key in by_key if key not in cached and key not in self._pending]
        if fresh and len(self._pending) >= self._max_pending:
            self._metrics.plans.labels("refused").inc(len(plans))
            wait = math.ceil(len(self._pending) * self._seconds_per_plan)
            raise OverloadedError(
                f"{len(self._pending)} plans already wait, and more are taken while fewer than {self._max_pending} do; "
                "ask again later, or start another replica",
                retry_after=min(max(wait, 1), 30),
            )
        repeated = sum(key in cached for key in keys)
        self._metrics.plans.labels("cached").inc(repeated)
        self._metrics.plans.labels("joined").inc(len(keys) - repeated - len(fresh))
        if len(cached) == len(by_key):
            return [cached[key] for key in keys]
        for key in fresh:
            self._pending[key] = _PendingPlan(key, by_key[key], self._plan_work(by_key[key]))
        awaited = {key: self._pending[key] for key in by_key if key not in cached}
        request = self._enqueue(list(awaited.values()))
        try:
            await request.done
        finally:
            self._drop(request)
        return [cached[key] if key in cached else awaited[key].ranking for key in keys]

    def _enqueue(self, plans: "list[_PendingPlan]") -> _Request:
        """A request for these plans, in the queue where any of them is not taken yet."""
        done = asyncio.get_running_loop().create_future()
        untaken = deque(pending for pending in plans if not pending.taken)
        request = _Request(plans, done, len(plans), untaken, time.monotonic())
        for pending in plans:
            pending.requests.append(request)
        self._metrics.queue.set(len(self._pending))
        if untaken:
            self._queue.append(request)
            self._new_requests += 1
            self._arrived.set()
            if self._new_requests >= self._last_requests or len(self._pending) >= self._max_batch:
                self._full.set()
        return request

    def _drop(self, request: _Request) -> None:
        """Forget a request that is answered, has failed or was given up, and the plans that only it waits for."""
        for pending in request.plans:
            if request in pending.requests:
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
                        async with asyncio.timeout(min(self._linger, LINGER_SHARE * self._seconds)):
                            await self._full.wait()
                batch = self._next_batch()
                self._full.clear()
                self._new_requests = 0
                if not self._queue:
                    self._arrived.clear()
                if not batch:
                    continue
                if self._is_long(batch[0]):
                    await self._search_step(batch[0])
                else:
                    await self._search_batch(batch)
                self._metrics.queue.set(len(self._pending))
        finally:
            error = OverloadedError("the service went down before this plan was searched; ask again")
            for pending in list(self._pending.values()):
                self._fail(pending.requests, error)
            self._pending.clear()
            self._queue.clear()
            self._metrics.queue.set(0)

    async def _search_batch(self, batch: "Sequence[_PendingPlan]") -> None:
        holders = [tuple(pending.requests) for pending in batch]
        started = time.perf_counter()
        outcomes = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._outcomes, [pending.plan for pending in batch], _groups(holders)
        )
        self._observe(len(batch), time.perf_counter() - started)
        self._last_requests = len({request for requests in holders for request in requests})
        for pending, requests, outcome in zip(batch, holders, outcomes, strict=True):
            self._settle(pending, requests, outcome)

    async def _search_step(self, pending: _PendingPlan) -> None:
        """One step of a long plan. Where it is not the last, the plan waits for the next turn of its requests, unless
        all of them are gone."""
        holders = tuple(pending.requests)
        started = time.perf_counter()
        outcome = await asyncio.get_running_loop().run_in_executor(self._thread, self._step, pending)
        pending.seconds += time.perf_counter() - started
        if outcome is not None:
            self._observe(1, pending.seconds)
            self._settle(pending, holders, outcome)
        else:
            self._wait_again(pending)
        self._queue_again(holders)

    def _observe(self, plans: int, seconds: float) -> None:
        self._seconds = seconds
        self._seconds_per_plan += 0.2 * (seconds / plans - self._seconds_per_plan)
        self._metrics.plans.labels("searched").inc(plans)
        self._metrics.batches.observe(plans)
        self._metrics.search_seconds.observe(seconds)

    def _is_long(self, pending: _PendingPlan) -> bool:
        return pending.work > BATCH_WORK and self._search_in_steps is not None

    def _next_batch(self) -> "list[_PendingPlan]":
        """A turn of each request that waits, the longest without one first, up to BATCH_WORK and `max_batch` plans. A
        step of a long plan is a batch of its own, after which its requests are the last in the queue."""
        batch: list[_PendingPlan] = []
        work = 0
        while self._queue and work < BATCH_WORK and len(batch) < self._max_batch:
            request = self._queue.popleft()
            turn_ends = min(work + TURN_WORK, BATCH_WORK)
            while request.untaken and work < turn_ends and len(batch) < self._max_batch:
                pending = request.untaken[0]
                starts_step = self._is_long(pending) and not pending.taken
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

    def _settle(self, pending: _PendingPlan, holders: Sequence[_Request], outcome: PlanRanking | Exception) -> None:
        """Give the plan's outcome to its requests. One that joined after the batch was taken, and so took no part in
        finding out whose plans fail, gets another search instead of a failure."""
        if isinstance(outcome, Exception):
            self._fail(holders, outcome)
            self._wait_again(pending)
            return
        pending.ranking = outcome
        del self._pending[pending.key]
        self.cache.put(pending.key, outcome)
        for request in pending.requests:
            request.open -= 1
            if not request.open and not request.done.done():
                request.done.set_result(None)

    def _wait_again(self, pending: _PendingPlan) -> None:
        """Put a plan without an outcome first among those that its requests wait for; without a request, forget it."""
        pending.taken = False
        for request in pending.requests:
            if pending not in request.untaken:
                request.untaken.appendleft(pending)
        self._queue_again(pending.requests)
        if not pending.requests:
            del self._pending[pending.key]

    def _queue_again(self, requests: Sequence[_Request]) -> None:
        """Put requests that have waiting plans at the end of the queue, unless they stand in it."""
        for request in requests:
            if request.untaken and request not in self._queue:
                self._queue.append(request)
                self._arrived.set()

    def _fail(self, requests: Sequence[_Request], error: Exception) -> None:
        for request in list(requests):
            if not request.done.done():
                request.done.set_exception(error)
            self._drop(request)

    def _outcomes(self, plans: Sequence[SearchPlan], groups: Sequence[Sequence[int]]) -> list[PlanRanking | Exception]:
        """Search a batch; where it fails, search each group of plans by itself, so that no request fails for another's
        plan. A request holds all plans of a group or none, so one at fault fails the group."""
        try:
            rankings = self._search(plans)
            if len(rankings) != len(plans):
                raise RuntimeError(f"search returned {len(rankings)} rankings for {len(plans)} plans")
        except EnvironmentUnavailableError as error:  # what the retriever leans on is down: no plan is at fault
            return [error] * len(plans)
        except Exception as error:  # noqa: BLE001 - the outcome of a plan; the request that holds it reports it
            outcomes: list[PlanRanking | Exception] = [error] * len(plans)
            if len(groups) > 1:
                for group in groups:
                    part = self._outcomes([plans[i] for i in group], [group])
                    for i, outcome in zip(group, part, strict=True):
                        outcomes[i] = outcome
            return outcomes
        return list(rankings)

    def _step(self, pending: _PendingPlan) -> PlanRanking | Exception | None:
        """One step of a long plan's search: its outcome, or None where more is to be done."""
        try:
            if pending.steps is None:
                assert self._search_in_steps is not None, "only then is a plan long"
                pending.steps = self._search_in_steps([pending.plan])
            next(pending.steps)
        except StopIteration as end:
            rankings: Sequence[PlanRanking] = end.value
            return rankings[0]
        except Exception as error:  # noqa: BLE001 - the outcome of the plan, as in `_outcomes`
            pending.steps = None
            return error
        return None


def _groups(holders: Sequence[tuple[_Request, ...]]) -> list[list[int]]:
    """Indices of the plans of a batch, by the requests that hold them."""
    groups: dict[frozenset[_Request], list[int]] = {}
    for i, requests in enumerate(holders):
        groups.setdefault(frozenset(requests), []).append(i)
    return list(groups.values())
