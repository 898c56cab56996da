"""Searches of many requests joined into one: the batcher and the ranking cache.

Invariant: every accepted plan gets exactly one outcome, a ranking or an exception; no caller waits for ever. All state
belongs to the event loop; one worker thread, and only it, calls the search function.
"""

import asyncio
import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from ...errors import EnvironmentUnavailableError
from ..environment import RankedHit
from ..plan import SearchPlan
from .cache import ByteCache
from .metrics import Metrics

Hits = Sequence[RankedHit]
Search = Callable[[Sequence[SearchPlan]], Sequence[Hits]]
Key = bytes
"""Digest of the index hash and the whole plan, every `k` of it included: 192 bits, so that no two plans share one."""

RANKING_BYTES, HIT_BYTES = 100, 104
"""What a ranking and each of its hits take; the document ids are the corpus' own."""
MAX_EXTRA_SEARCHES = 64
"""How many searches may be spent on finding the plans that make a batch fail."""
LINGER_SECONDS, LINGER_SHARE = 0.02, 0.25
"""A batch waits until as many requests are there as the last one answered, since their clients will soon ask again,
but at most LINGER_SECONDS and this share of the last search's time: a lone client never waits, a slow encoder gets full
batches from many clients, and a fast retriever is not held up."""


class OverloadedError(Exception):
    """Too many plans wait, or the service is going down. `retry_after` is in whole seconds, at least 1."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def ranking_cache(max_bytes: int) -> ByteCache[Key, Hits]:
    """A cache of rankings that takes at most `max_bytes` bytes."""
    return ByteCache(max_bytes, lambda _, hits: RANKING_BYTES + HIT_BYTES * len(hits))


@dataclass(slots=True)
class _Request:
    """A request that waits for some plans; `done` is set when the last of them has its outcome."""

    open: int
    done: "asyncio.Future[None]"

    def settle(self) -> None:
        self.open -= 1
        if not self.open and not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True)
class _PendingPlan:
    key: Key
    plan: SearchPlan
    requests: list[_Request] = field(default_factory=list)
    outcome: Hits | Exception | None = None

    @property
    def ranking(self) -> Hits:
        """The outcome. Raises it where the search failed; None is no outcome yet."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome


class Batcher:
    """Collects the plans of concurrent requests and searches them together."""

    def __init__(
        self,
        search: Search,
        index_hash: str,
        *,
        max_pending: int,
        cache_bytes: int,
        max_batch: int = 1024,
        linger: float = LINGER_SECONDS,
        metrics: Metrics | None = None,
    ) -> None:
        """`linger` is in seconds: how long the first plan of a batch waits for others at most."""
        self._search = search
        self._index_digest = hashlib.blake2b(index_hash.encode() + b"\0", digest_size=24)
        self._max_pending = max_pending
        self._max_batch = max_batch
        self._linger = linger
        self._metrics = metrics or Metrics()
        self.cache = ranking_cache(cache_bytes)
        self._queue: deque[_PendingPlan] = deque()
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
        """Whether plans are taken."""
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        """Begin to take plans."""
        self._task = asyncio.create_task(self._work(), name="querylect-batcher")

    async def stop(self) -> None:
        """Stop taking plans and fail those that still wait."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def search(self, plans: Sequence[SearchPlan]) -> list[Hits]:
        """Rank every plan, in order. A plan that is cached or already waiting is not searched again.

        Raises OverloadedError where `max_pending` plans wait already (none of these is taken then), and what the search
        function raised where one of these plans made it fail.

        A request with one plan is let in exactly when a request with a thousand is. Were the queue's room left to
        decide, small requests would fill it again and again before a large one ever fitted.
        """
        if not self.running:
            raise OverloadedError("the service is going down; ask another replica, or again after its restart")
        keys = [self._key(plan) for plan in plans]
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
            self._pending[key] = pending = _PendingPlan(key, by_key[key])
            self._queue.append(pending)
        awaited = {key: self._pending[key] for key in by_key if key not in cached}
        request = _Request(len(awaited), asyncio.get_running_loop().create_future())
        for pending in awaited.values():
            pending.requests.append(request)
        if fresh:
            self._metrics.queue.set(len(self._pending))
            self._new_requests += 1
            self._arrived.set()
            if self._new_requests >= self._last_requests or len(self._queue) >= self._max_batch:
                self._full.set()
        await request.done
        return [cached[key] if key in cached else awaited[key].ranking for key in keys]

    def _key(self, plan: SearchPlan) -> Key:
        digest = self._index_digest.copy()
        digest.update(plan.model_dump_json().encode())
        return digest.digest()

    async def _work(self) -> None:
        batch: list[_PendingPlan] = []
        try:
            while True:
                batch = []
                if not self._arrived.is_set():
                    await self._arrived.wait()
                    with suppress(TimeoutError):
                        # not wait_for, which forgets that it was cancelled where what it waits for comes meanwhile
                        async with asyncio.timeout(min(self._linger, LINGER_SHARE * self._seconds)):
                            await self._full.wait()
                batch = [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]
                self._full.clear()
                self._new_requests = 0
                if not self._queue:
                    self._arrived.clear()
                started = time.perf_counter()
                outcomes = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._outcomes, [pending.plan for pending in batch]
                )
                self._seconds = time.perf_counter() - started
                self._seconds_per_plan += 0.2 * (self._seconds / len(batch) - self._seconds_per_plan)
                self._metrics.plans.labels("searched").inc(len(batch))
                self._metrics.batches.observe(len(batch))
                self._metrics.search_seconds.observe(self._seconds)
                self._last_requests = len({id(request) for pending in batch for request in pending.requests})
                for pending, outcome in zip(batch, outcomes, strict=True):
                    self._settle(pending, outcome)
                self._metrics.queue.set(len(self._pending))
        finally:
            error = OverloadedError("the service went down before this plan was searched; ask again")
            for pending in [*batch, *self._queue]:
                self._settle(pending, error)
            self._queue.clear()
            self._metrics.queue.set(0)

    def _settle(self, pending: _PendingPlan, outcome: Hits | Exception) -> None:
        if pending.outcome is not None:
            return
        pending.outcome = outcome
        del self._pending[pending.key]
        if not isinstance(outcome, Exception):
            self.cache.put(pending.key, outcome)
        for request in pending.requests:
            request.settle()

    def _outcomes(self, plans: Sequence[SearchPlan]) -> list[Hits | Exception]:
        """Search a batch; where it fails, halve it until the plans at fault stand alone, so that no other fails."""
        budget = MAX_EXTRA_SEARCHES

        def attempt(part: Sequence[SearchPlan]) -> list[Hits | Exception]:
            nonlocal budget
            try:
                rankings = self._search(part)
                if len(rankings) != len(part):
                    raise RuntimeError(f"search returned {len(rankings)} rankings for {len(part)} plans")
            except EnvironmentUnavailableError as error:  # what the retriever leans on is down: no plan is at fault
                return [error] * len(part)
            except Exception as error:  # noqa: BLE001 - the outcome of a plan; the request that holds it reports it
                if len(part) == 1 or budget < 2:
                    return [error] * len(part)
                budget -= 2
                middle = len(part) // 2
                return attempt(part[:middle]) + attempt(part[middle:])
            return [tuple(ranking) for ranking in rankings]

        return attempt(plans)
