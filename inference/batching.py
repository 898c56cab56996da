"""Dynamic batching: calls that arrive while a batch is running are put into the next one.

Invariants: one batch runs at a time, whatever threads and event loops call; every order gets exactly one outcome.
A synchronous call runs batches in its own thread, so that Ctrl-C reaches it. Asynchronous calls share one daemon
thread.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

from ..data.sampling import in_batches
from ..errors import EngineUnavailableError, EnvironmentUnavailableError, ModelError, QuerylectError

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


SHARED_ERRORS = (EngineUnavailableError, EnvironmentUnavailableError, ModelError)
"""Errors that do not depend on the items, so retrying each order of the batch alone is pointless."""


class ClosedError(QuerylectError):
    """The batcher was closed or interrupted before it ran an order."""


@dataclass(frozen=True, slots=True)
class _Order(Generic[Item, Outcome]):
    items: Sequence[Item]
    future: "Future[list[Outcome]]"


class DynamicBatcher(Generic[Item, Outcome]):
    """Calls `work` with batches of at most `max_items` items, from one or more orders."""

    def __init__(self, work: Callable[[list[Item]], list[Outcome]], max_items: int) -> None:
        self._work, self._max_items = work, max_items
        self._orders: deque[_Order[Item, Outcome]] = deque()
        self._work_lock = threading.Lock()
        self._async_orders: SimpleQueue[Future[list[Outcome]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._state_lock = threading.Lock()
        self._closed = False
        self.seconds_per_item = 0.0
        """Moving average over the last batches, for estimates of the waiting time."""

    @property
    def waiting(self) -> int:
        """Number of queued items that were not cancelled."""
        with self._state_lock:
            return sum(len(order.items) for order in self._orders if not order.future.cancelled())

    def ask(self, items: Sequence[Item]) -> list[Outcome]:
        """The outcomes, in the order of `items`. Raises the error of `work` on these items."""
        outcomes: list[Outcome] = []
        for part in in_batches(items, self._max_items):
            future = self._enqueue(part)
            try:
                self._work_until(future)
                outcomes += future.result()
            finally:
                future.cancel()  # no effect unless Ctrl-C interrupted the wait
        return outcomes

    async def ask_soon(self, items: Sequence[Item]) -> list[Outcome]:
        """`ask` without blocking the event loop. Concurrent calls share a batch; cancelled calls are not run if still
        queued."""
        futures = [self._enqueue(part) for part in in_batches(items, self._max_items)]
        if not futures:
            return []
        # Scheduled behind all ready tasks, so that their orders are queued before the thread takes a batch.
        asyncio.get_running_loop().call_soon(self._start_worker, futures[-1])
        try:
            return [outcome for future in futures for outcome in await asyncio.wrap_future(future)]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Fail all queued orders with ClosedError and refuse new ones, without waiting for the running batch."""
        with self._state_lock:
            self._closed = True
            pending = list(self._orders)
            self._orders.clear()
            self._async_orders.put(None)
        for order in pending:
            if order.future.set_running_or_notify_cancel():
                order.future.set_exception(ClosedError("the rewriter was closed before it came to this question"))

    def _enqueue(self, items: Sequence[Item]) -> "Future[list[Outcome]]":
        order: _Order[Item, Outcome] = _Order(items, Future())
        with self._state_lock:
            if self._closed:
                raise ClosedError("the rewriter is closed")
            self._orders.append(order)
        return order.future

    def _start_worker(self, future: "Future[list[Outcome]]") -> None:
        with self._state_lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="querylect-rewrite", daemon=True)
                self._thread.start()
        self._async_orders.put(future)

    def _run(self) -> None:
        while (future := self._async_orders.get()) is not None:
            try:
                self._work_until(future)
            except BaseException:
                log.exception("a batch of questions was broken off")

    def _work_until(self, future: "Future[list[Outcome]]") -> None:
        """Run batches, oldest orders first, until the order of `future` is done."""
        with self._work_lock:
            while not future.done():
                batch: list[_Order[Item, Outcome]] = []
                try:
                    self._take_batch(batch)
                    if not batch:
                        return
                    self._run_batch(batch)
                finally:
                    for order in batch:
                        if not order.future.done():  # interrupted by Ctrl-C in one caller's thread
                            order.future.set_exception(ClosedError("interrupted before it came to this question"))

    def _take_batch(self, batch: list[_Order[Item, Outcome]]) -> None:
        """Move the orders of the next batch from the queue to `batch`, skipping cancelled ones."""
        size = 0
        with self._state_lock:
            while self._orders and (not batch or size + len(self._orders[0].items) <= self._max_items):
                order = self._orders.popleft()
                if order.future.set_running_or_notify_cancel():
                    batch.append(order)
                    size += len(order.items)

    def _run_batch(self, batch: Sequence[_Order[Item, Outcome]]) -> None:
        items = [item for order in batch for item in order.items]
        started = time.perf_counter()
        try:
            outcomes = iter(self._work(items))
        except Exception as error:  # noqa: BLE001 (passed to the callers as the outcome)
            if len(batch) == 1 or isinstance(error, SHARED_ERRORS):
                for order in batch:
                    order.future.set_exception(error)
                return
            for order in batch:  # one order causes the error: run each alone, so that the others succeed
                self._run_batch([order])
        else:
            seconds = (time.perf_counter() - started) / max(1, len(items))
            self.seconds_per_item += (0.3 if self.seconds_per_item else 1.0) * (seconds - self.seconds_per_item)
            for order in batch:
                order.future.set_result([next(outcomes) for _ in order.items])
