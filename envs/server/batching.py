"""Searches of many requests joined into one, and the figures of a service.

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
from functools import partial
from hashlib import blake2b

from cachetools import LRUCache
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic_core import PydanticSerializationError, to_json

from ...errors import EnvironmentUnavailableError, RequestError
from ..environment import Environment, Ranking
from ..plan import SearchPlan
from ..schemas import MAX_WORK

MAX_BATCH = 256
"""Most plans that are searched together."""
MAX_PENDING = MAX_WORK
"""While plans of so much work wait or are searched, requests with new ones are refused, whatever their size: if only
those that fit were taken, small ones would keep the queue full, and a large one would never fit."""
CACHE_BYTES = 256 * 2**20
RANKING_BYTES, HIT_BYTES = 300, 104
"""What a cached ranking and each of its hits take; the document ids are the corpus' own."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
PLANS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class OverloadedError(Exception):
    """Too much work waits, or the service is going down."""


class TooLargeError(RequestError):
    """The plans of a request are too much work for one."""


class Metrics:
    """The figures of `GET /metrics`, for Prometheus. No label contains text that a client chooses freely."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self.requests = counter("querylect_requests", "Requests answered, by route and status.", ["route", "status"])
        self.seconds = histogram("querylect_request_seconds", "Seconds of a request.", ["route"], buckets=SECONDS)
        self.plans = counter("querylect_plans", "Plans asked for, by where their rankings came from.", ["outcome"])
        self.truncated = counter("querylect_truncated_texts", "Texts of plans that were read only in part.")
        self.queue = Gauge("querylect_queue_plans", "Plans that wait or are searched.", registry=registry)
        self.batches = histogram("querylect_batch_plans", "Plans searched together.", buckets=PLANS)
        self.search_seconds = histogram("querylect_search_seconds", "Seconds of one batch's search.", buckets=SECONDS)

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)


@dataclass(slots=True, eq=False)
class _Pending:
    key: bytes
    plan: SearchPlan
    work: int
    ranking: asyncio.Future[Ranking]


class Batcher:
    """Ranks the plans of concurrent requests together."""

    def __init__(self, environment: Environment, metrics: Metrics) -> None:
        self._environment = environment
        self._metrics = metrics
        self._cache: LRUCache[bytes, Ranking] = LRUCache(
            CACHE_BYTES, lambda ranking: RANKING_BYTES + HIT_BYTES * len(ranking)
        )
        self._pending: dict[bytes, _Pending] = {}
        """Plans that wait or are searched, by their digest."""
        self._queue: asyncio.Queue[_Pending] = asyncio.Queue()
        """Those of them that no batch has taken yet."""
        self._work = 0
        """Of all that are pending."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="querylect-search")
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether new plans are taken."""
        return self._task is not None and not self._task.done() and self._work < MAX_PENDING

    async def start(self) -> None:
        """Begin to take plans."""
        self._task = asyncio.create_task(self._run(), name="querylect-batcher")

    async def stop(self) -> None:
        """Stop taking plans and fail those that still wait."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(wait=False, cancel_futures=True)
        while self._pending:
            _, pending = self._pending.popitem()
            _fail(pending, OverloadedError("the service is going down; ask another replica"))

    async def rank(self, plans: Sequence[SearchPlan]) -> list[Ranking]:
        """Rank every plan, in order; one that is cached or already waits is not searched again.

        Raises TooLargeError for more than MAX_WORK, RequestError for a text that is no Unicode, OverloadedError where
        MAX_PENDING waits already (none of these is taken then), and what the search raised where one of these plans
        made it fail.
        """
        works = [plan.work for plan in plans]
        if sum(works) > MAX_WORK:
            raise TooLargeError(
                f"the work of this request is {sum(works)} and at most {MAX_WORK} is taken: a text counts as its "
                "characters and 256, a document asked for as 8. Send the plans in several requests."
            )
        try:
            keys = [blake2b(to_json(plan), digest_size=16).digest() for plan in plans]
        except PydanticSerializationError as error:
            raise RequestError(f"a plan is no valid Unicode ({error}).") from error
        rankings = {key: self._cache[key] for key in keys if key in self._cache}
        new: dict[bytes, _Pending] = {}
        for key, plan, work in zip(keys, plans, works, strict=True):
            if key not in rankings and key not in self._pending:
                new[key] = _Pending(key, plan, work, asyncio.get_running_loop().create_future())
        if new and not self.ready:
            self._metrics.plans.labels("refused").inc(len(plans))
            raise OverloadedError("too much work waits, or the service starts or ends; ask later, or another replica")
        cached = sum(key in rankings for key in keys)
        self._metrics.plans.labels("cached").inc(cached)
        self._metrics.plans.labels("joined").inc(len(keys) - cached - len(new))
        self._pending |= new
        for pending in new.values():
            self._queue.put_nowait(pending)
            self._work += pending.work
        self._metrics.queue.set(len(self._pending))
        if futures := {key: self._pending[key].ranking for key in keys if key not in rankings}:
            await asyncio.wait(futures.values())  # unlike gather, it cancels none that others wait for
            rankings |= {key: future.result() for key, future in futures.items()}
        self._metrics.truncated.inc(sum(rankings[key].truncated for key in keys))
        return [rankings[key] for key in keys]

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._search(batch)

    async def _search(self, batch: Sequence[_Pending]) -> None:
        """Search plans together; where that fails, each by itself, so that none fails for another."""
        started, plans = time.perf_counter(), [pending.plan for pending in batch]
        try:
            ranked = await asyncio.get_running_loop().run_in_executor(self._thread, self._rank, plans)
            rankings = list(zip(batch, ranked, strict=True))
        except Exception as error:  # noqa: BLE001 - whatever it is, the requests that hold the plan report it
            # a service behind the retriever may be down: then no plan is at fault
            if len(batch) == 1 or isinstance(error, EnvironmentUnavailableError):
                for pending in batch:
                    _fail(self._take(pending), error)
            else:
                for pending in batch:
                    await self._search([pending])
            return
        self._metrics.plans.labels("searched").inc(len(plans))
        self._metrics.batches.observe(len(plans))
        self._metrics.search_seconds.observe(time.perf_counter() - started)
        for pending, ranking in rankings:
            self._cache[pending.key] = ranking
            self._take(pending).ranking.set_result(ranking)
        self._metrics.queue.set(len(self._pending))

    def _rank(self, plans: Sequence[SearchPlan]) -> list[Ranking]:
        try:
            return self._environment.rank(plans)
        except StopIteration as error:  # no future can carry it, and the batch would wait for ever
            raise RuntimeError("the retriever raised StopIteration") from error

    def _take(self, pending: _Pending) -> _Pending:
        self._work -= pending.work
        return self._pending.pop(pending.key)


def _fail(pending: _Pending, error: Exception) -> None:
    pending.ranking.set_exception(error)
    pending.ranking.exception()  # whoever has asked for it may have left
