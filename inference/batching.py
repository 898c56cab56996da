"""Dynamic batching: calls that arrive while a batch is running are put into the next one.

A daemon thread runs the batches, one at a time, and ends when nothing waits; callers in threads and event loops wait
for their outcomes.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from ..data.sampling import in_batches
from ..errors import EngineUnavailableError, QuerylectError

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class ClosedError(QuerylectError):
    """The batcher was closed before it ran an order."""


_Order = tuple[Sequence[Item], Future[list[Outcome]]]


class DynamicBatcher(Generic[Item, Outcome]):
    """Calls `work` with batches of at most `max_items` items, from one or more orders."""

    def __init__(self, work: Callable[[list[Item]], list[Outcome]], max_items: int) -> None:
        self._work, self._max_items = work, max_items
        self._orders: deque[_Order[Item, Outcome]] = deque()
        self._lock = threading.Lock()
        self._running = self._closed = False

    @property
    def waiting(self) -> int:
        """Number of queued items that were not cancelled."""
        with self._lock:
            return sum(len(items) for items, future in self._orders if not future.cancelled())

    def ask(self, items: Sequence[Item]) -> list[Outcome]:
        """The outcomes, in the order of `items`. Raises the error of `work` on these items."""
        futures = self._enqueue(items)
        self._start()
        try:
            return [outcome for future in futures for outcome in future.result()]
        finally:  # of an interrupted call, what is still queued is not run
            for future in futures:
                future.cancel()

    async def ask_soon(self, items: Sequence[Item]) -> list[Outcome]:
        """`ask` without blocking the event loop; cancelled calls that are still queued are not run."""
        futures = self._enqueue(items)
        try:
            await asyncio.sleep(0)  # all tasks that are ready queue their orders before a batch is taken
            self._start()
            return [outcome for future in futures for outcome in await asyncio.wrap_future(future)]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Fail all queued orders with ClosedError and refuse new ones, without waiting for the running batch."""
        with self._lock:
            self._closed = True
            pending = list(self._orders)
            self._orders.clear()
        for _, future in pending:
            if future.set_running_or_notify_cancel():
                future.set_exception(ClosedError("the rewriter was closed before it came to this question"))

    def _enqueue(self, items: Sequence[Item]) -> list["Future[list[Outcome]]"]:
        orders: list[_Order[Item, Outcome]] = [(part, Future()) for part in in_batches(items, self._max_items)]
        with self._lock:
            if self._closed:
                raise ClosedError("the rewriter is closed")
            self._orders.extend(orders)
        return [future for _, future in orders]

    def _start(self) -> None:
        with self._lock:
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="querylect-rewrite", daemon=True).start()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._run_batch(batch)

    def _next_batch(self) -> list[_Order[Item, Outcome]]:
        """The orders of the next batch; without any, the thread ends."""
        batch: list[_Order[Item, Outcome]] = []
        size = 0
        with self._lock:
            while self._orders and (not batch or size + len(self._orders[0][0]) <= self._max_items):
                items, future = self._orders.popleft()
                if future.set_running_or_notify_cancel():
                    batch.append((items, future))
                    size += len(items)
            self._running = bool(batch)
        return batch

    def _run_batch(self, batch: Sequence[_Order[Item, Outcome]]) -> None:
        try:
            outcomes = iter(self._work([item for items, _ in batch for item in items]))
        except BaseException as error:  # noqa: BLE001 (passed to the callers as the outcome)
            if len(batch) == 1 or isinstance(error, EngineUnavailableError):
                for _, future in batch:
                    future.set_exception(error)
                return
            for order in batch:  # so that one order that cannot be answered does not fail the others
                self._run_batch([order])
        else:
            for items, future in batch:
                future.set_result([next(outcomes) for _ in items])
