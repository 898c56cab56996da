"""Searches of many requests joined into one.

Plans that arrive while a batch is searched make up the next batch; equal plans are searched once and cached. A plan
that makes the search fail fails only the requests that contain it. All state belongs to the event loop; a single worker
thread calls the search.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

from cachetools import LRUCache
from pydantic_core import to_json

from ...errors import EnvironmentUnavailableError
from ..environment import Environment, PlanRanking
from ..plan import SearchPlan
from .metrics import Metrics

MAX_BATCH = 256
"""Most plans that are searched together."""
MAX_PENDING = 4096
"""While so many plans wait or are searched, requests with new ones are refused, whatever their size: if only those that
fit were taken, small ones would keep the queue full, and a large one would never fit."""
CACHE_BYTES = 256 * 2**20
RANKING_BYTES, HIT_BYTES = 300, 104
"""What a cached ranking and each of its hits take; the document ids are the corpus' own."""
GOING_DOWN = "the service is going down; ask another replica, or again after its restart"


class OverloadedError(Exception):
    """Too many plans wait, or the service is going down."""


@dataclass(slots=True, eq=False)
class _Pending:
    plan: SearchPlan
    ranking: asyncio.Future[PlanRanking]


class Batcher:
    """Collects the plans of concurrent requests and searches them together."""

    def __init__(self, environment: Environment, metrics: Metrics) -> None:
        self._environment = environment
        self._metrics = metrics
        self._cache: LRUCache[bytes, PlanRanking] = LRUCache(
            CACHE_BYTES, lambda ranking: RANKING_BYTES + HIT_BYTES * len(ranking)
        )
        self._pending: dict[bytes, _Pending] = {}
        """Plans without a ranking, by the digest of the plan."""
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        """Those of them that no batch has taken yet."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="querylect-search")
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._task is not None and not self._task.done()

    @property
    def ready(self) -> bool:
        """Whether new plans are taken."""
        return self.running and len(self._pending) < MAX_PENDING

    async def start(self) -> None:
        """Begin to take plans."""
        self._task = asyncio.create_task(self._work(), name="querylect-batcher")

    async def stop(self) -> None:
        """Stop taking plans and fail those that still wait."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._fail(list(self._pending), OverloadedError(GOING_DOWN))

    async def search(self, plans: Sequence[SearchPlan]) -> list[PlanRanking]:
        """Rank every plan, in order; one that is cached or already waits is not searched again.

        Raises OverloadedError where MAX_PENDING plans wait already (none of these is taken then), and what the search
        raised where one of these plans made it fail.
        """
        if not self.running:
            raise OverloadedError(GOING_DOWN)
        keys = list(map(_key, plans))
        by_key = dict(zip(keys, plans, strict=True))
        rankings = {key: self._cache[key] for key in by_key if key in self._cache}
        fresh = [key for key in by_key if key not in rankings and key not in self._pending]
        if fresh and len(self._pending) >= MAX_PENDING:
            self._metrics.plans.labels("refused").inc(len(plans))
            raise OverloadedError(
                f"{len(self._pending)} plans already wait, and more are taken while fewer than {MAX_PENDING} do; "
                "ask again later, or start another replica"
            )
        cached = sum(key in rankings for key in keys)
        self._metrics.plans.labels("cached").inc(cached)
        self._metrics.plans.labels("joined").inc(len(keys) - cached - len(fresh))
        for key in fresh:
            self._pending[key] = _Pending(by_key[key], asyncio.get_running_loop().create_future())
            self._queue.put_nowait(key)
        self._metrics.queue.set(len(self._pending))
        waiting = {key: self._pending[key].ranking for key in by_key if key not in rankings}
        if waiting:
            await asyncio.wait(waiting.values())  # unlike gather, it cancels none that others wait for
        rankings |= {key: future.result() for key, future in waiting.items()}
        return [rankings[key] for key in keys]

    async def _work(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._search(batch)

    async def _search(self, keys: Sequence[bytes]) -> None:
        """Search plans together; where that fails, each by itself, so that none fails for another."""
        started = time.perf_counter()
        plans = [self._pending[key].plan for key in keys]
        try:
            rankings = await asyncio.get_running_loop().run_in_executor(self._thread, self._environment.search, plans)
            if len(rankings) != len(plans):
                raise RuntimeError(f"search returned {len(rankings)} rankings for {len(plans)} plans")
        except Exception as error:  # noqa: BLE001 - whatever it is, the requests that hold the plan report it
            # a service behind the retriever may be down: then no plan is at fault
            if len(keys) == 1 or isinstance(error, EnvironmentUnavailableError):
                self._fail(keys, error)
                return
            for key in keys:
                await self._search([key])
            return
        self._metrics.plans.labels("searched").inc(len(plans))
        self._metrics.batches.observe(len(plans))
        self._metrics.search_seconds.observe(time.perf_counter() - started)
        for key, ranking in zip(keys, rankings, strict=True):
            self._cache[key] = ranking
            self._pending.pop(key).ranking.set_result(ranking)
        self._metrics.queue.set(len(self._pending))

    def _fail(self, keys: Sequence[bytes], error: Exception) -> None:
        for key in keys:
            future = self._pending.pop(key).ranking
            future.set_exception(error)
            future.exception()  # whoever has asked for it may have left
        self._metrics.queue.set(len(self._pending))


def _key(plan: SearchPlan) -> bytes:
    return blake2b(to_json(plan), digest_size=16).digest()
