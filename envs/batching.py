"""Searches of many requests joined into one: the batcher and the ranking cache.

Invariant: every accepted plan gets exactly one outcome, a ranking or an exception; no caller waits for ever. All state
belongs to the event loop; one worker thread, and only it, calls the search function.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from .environment import RankedHit
from .plan import SearchPlan

Hits = Sequence[RankedHit]
Search = Callable[[Sequence[SearchPlan]], Sequence[Hits]]
Key = tuple[str, SearchPlan]
"""Index hash and the whole plan, every `k` of it included."""

HITS_PER_ENTRY = 10
MAX_EXTRA_SEARCHES = 64
"""How many searches may be spent on finding the plans that make a batch fail."""


class OverloadedError(Exception):
    """Too many plans wait, or the service is going down. `retry_after` is in whole seconds, at least 1."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RankingCache:
    """The rankings used last, bounded by their length: each started ten hits count as one entry."""

    def __init__(self, entries: int) -> None:
        self._room = entries
        self._used = 0
        self._rankings: OrderedDict[Key, Hits] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rankings)

    def get(self, key: Key) -> Hits | None:
        """The ranking kept for the key, or None."""
        hits = self._rankings.get(key)
        if hits is not None:
            self._rankings.move_to_end(key)
        return hits

    def put(self, key: Key, hits: Hits) -> None:
        """Keep a ranking and drop the ones not asked for the longest where there is no more room."""
        if key in self._rankings:
            self._used -= self._cost(self._rankings.pop(key))
        self._rankings[key] = hits
        self._used += self._cost(hits)
        while self._used > self._room:
            _, dropped = self._rankings.popitem(last=False)
            self._used -= self._cost(dropped)

    @staticmethod
    def _cost(hits: Hits) -> int:
        return max(1, math.ceil(len(hits) / HITS_PER_ENTRY))


@dataclass(slots=True)
class _Waiting:
    key: Key
    future: "asyncio.Future[Hits]"


class Batcher:
    """Collects the plans of concurrent requests and searches them together."""

    def __init__(
        self,
        search: Search,
        index_hash: str,
        *,
        max_pending: int,
        cache_entries: int,
        max_batch: int = 1024,
        linger: float = 0.003,
    ) -> None:
        """`linger` is in seconds: how long the first plan of a batch waits for others; it never waits once
        `max_batch` plans are there."""
        self._search = search
        self._index_hash = index_hash
        self._max_pending = max_pending
        self._max_batch = max_batch
        self._linger = linger
        self.cache = RankingCache(cache_entries)
        self._queue: deque[_Waiting] = deque()
        self._pending: dict[Key, asyncio.Future[Hits]] = {}
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._seconds_per_plan = 0.001
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

        Raises OverloadedError where the plans do not fit into the queue (none of them is taken then), and what the
        search function raised where one of these plans made it fail.
        """
        if not self.running:
            raise OverloadedError("the service is going down; ask another replica, or again after its restart")
        keys = [(self._index_hash, plan) for plan in plans]
        found = {key: self.cache.get(key) for key in set(keys)}
        fresh = [key for key, hits in found.items() if hits is None and key not in self._pending]
        if len(self._pending) + len(fresh) > self._max_pending:
            wait = math.ceil(len(self._pending) * self._seconds_per_plan)
            raise OverloadedError(
                f"{len(self._pending)} plans already wait and at most {self._max_pending} may; ask again later, "
                "send fewer plans at once or start another replica",
                retry_after=min(max(wait, 1), 30),
            )
        loop = asyncio.get_running_loop()
        for key in fresh:
            future: asyncio.Future[Hits] = loop.create_future()
            future.add_done_callback(_mark_seen)
            self._pending[key] = future
            self._queue.append(_Waiting(key, future))
        awaited = {key: self._pending[key] for key, hits in found.items() if hits is None}
        if fresh:
            self._arrived.set()
            if len(self._queue) >= self._max_batch:
                self._full.set()
        if awaited:
            await asyncio.wait(awaited.values())
        return [hits if (hits := found[key]) is not None else awaited[key].result() for key in keys]

    async def _work(self) -> None:
        batch: list[_Waiting] = []
        try:
            while True:
                batch = []
                if not self._arrived.is_set():
                    await self._arrived.wait()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._full.wait(), self._linger)
                batch = [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]
                self._full.clear()
                if not self._queue:
                    self._arrived.clear()
                started = time.perf_counter()
                outcomes = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._outcomes, [waiting.key[1] for waiting in batch]
                )
                seconds = (time.perf_counter() - started) / len(batch)
                self._seconds_per_plan += 0.2 * (seconds - self._seconds_per_plan)
                for waiting, outcome in zip(batch, outcomes, strict=True):
                    self._settle(waiting, outcome)
        finally:
            gone = OverloadedError("the service went down before this plan was searched; ask again")
            for waiting in [*batch, *self._queue]:
                self._settle(waiting, gone)
            self._queue.clear()

    def _settle(self, waiting: _Waiting, outcome: Hits | Exception) -> None:
        if waiting.future.done():
            return
        del self._pending[waiting.key]
        if isinstance(outcome, Exception):
            waiting.future.set_exception(outcome)
        else:
            self.cache.put(waiting.key, outcome)
            waiting.future.set_result(outcome)

    def _outcomes(self, plans: Sequence[SearchPlan]) -> list[Hits | Exception]:
        """Search a batch; where it fails, halve it until the plans at fault stand alone, so that no other fails."""
        budget = MAX_EXTRA_SEARCHES

        def attempt(part: Sequence[SearchPlan]) -> list[Hits | Exception]:
            nonlocal budget
            try:
                rankings = self._search(part)
                if len(rankings) != len(part):
                    raise RuntimeError(f"search returned {len(rankings)} rankings for {len(part)} plans")
            except Exception as error:  # noqa: BLE001 - the outcome of a plan; the request that holds it reports it
                if len(part) == 1 or budget < 2:
                    return [error] * len(part)
                budget -= 2
                middle = len(part) // 2
                return attempt(part[:middle]) + attempt(part[middle:])
            return [tuple(ranking) for ranking in rankings]

        return attempt(plans)


def _mark_seen(future: "asyncio.Future[Hits]") -> None:
    """Read the exception of a future whose request has gone, so that asyncio does not log it as lost."""
    if not future.cancelled():
        future.exception()
