"""Work of many callers put together: whoever comes while a batch is worked on stands in the next one.

Invariant: one batch is worked on at a time, whatever threads and event loops ask; every order gets exactly one outcome.
A synchronous caller works with its own thread, so that Ctrl-C reaches it; asynchronous ones share one thread, which
does not keep a process from ending.
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

from ..errors import EngineUnavailableError, EnvironmentUnavailableError, ModelError, QuerylectError

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


NOBODYS_FAULT = (EngineUnavailableError, EnvironmentUnavailableError, ModelError)
"""Errors that do not come of what was asked: alone an order would fail as well, after as long a wait."""


class ClosedError(QuerylectError):
    """The desk was closed, or the work broken off, before an order had its turn."""


@dataclass(frozen=True, slots=True)
class _Order(Generic[Item, Outcome]):
    items: Sequence[Item]
    future: "Future[list[Outcome]]"


class Desk(Generic[Item, Outcome]):
    """Calls `work` with the items of one or more orders, at most `most` of them unless one order alone has more."""

    def __init__(self, work: Callable[[list[Item]], list[Outcome]], most: int) -> None:
        self._work, self._most = work, most
        self._orders: deque[_Order[Item, Outcome]] = deque()
        self._busy = threading.Lock()
        self._begun: SimpleQueue[Future[list[Outcome]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._door = threading.Lock()
        self._closed = False
        self.seconds_per_item = 0.0
        """Of the last batches, for an estimate of how long those who wait will."""

    @property
    def waiting(self) -> int:
        """Items that nobody works on yet and somebody still wants."""
        with self._door:
            return sum(len(order.items) for order in self._orders if not order.future.cancelled())

    def ask(self, items: Sequence[Item]) -> list[Outcome]:
        """The outcomes, in order. Raises what the work on these items raised."""
        found: list[Outcome] = []
        for part in self._parts(items):
            future = self._put(part)
            try:
                self._work_until(future)
                found += future.result()
            finally:
                future.cancel()  # nobody wants it any more where Ctrl-C came first
        return found

    async def ask_soon(self, items: Sequence[Item]) -> list[Outcome]:
        """`ask` without holding up the event loop. Calls made together are worked on together; what is cancelled before
        its turn is never worked on."""
        futures = [self._put(part) for part in self._parts(items)]
        if not futures:
            return []
        # Behind every task that is ready now: they put their own orders before the thread looks.
        asyncio.get_running_loop().call_soon(self._begin, futures[-1])
        try:
            return [outcome for future in futures for outcome in await asyncio.wrap_future(future)]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Work on nothing more; who waits is told. It does not wait for the batch that is worked on."""
        with self._door:
            self._closed = True
            waiting = list(self._orders)
            self._orders.clear()
            self._begun.put(None)
        for order in waiting:
            if order.future.set_running_or_notify_cancel():
                order.future.set_exception(ClosedError("the rewriter was closed before it came to this question"))

    def _parts(self, items: Sequence[Item]) -> list[Sequence[Item]]:
        return [items[start : start + self._most] for start in range(0, len(items), self._most)]

    def _put(self, items: Sequence[Item]) -> "Future[list[Outcome]]":
        order: _Order[Item, Outcome] = _Order(items, Future())
        with self._door:
            if self._closed:
                raise ClosedError("the rewriter is closed")
            self._orders.append(order)
        return order.future

    def _begin(self, future: "Future[list[Outcome]]") -> None:
        with self._door:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="querylect-rewrite", daemon=True)
                self._thread.start()
        self._begun.put(future)

    def _run(self) -> None:
        while (future := self._begun.get()) is not None:
            try:
                self._work_until(future)
            except BaseException:
                log.exception("a batch of questions was broken off")

    def _work_until(self, future: "Future[list[Outcome]]") -> None:
        """Work on batches until that order has its outcome; orders before it come first."""
        with self._busy:
            while not future.done():
                batch: list[_Order[Item, Outcome]] = []
                try:
                    self._fill(batch)
                    if not batch:
                        return
                    self._settle(batch)
                finally:
                    for order in batch:
                        if not order.future.done():  # Ctrl-C of one caller, which is no outcome of the others
                            order.future.set_exception(ClosedError("interrupted before it came to this question"))

    def _fill(self, batch: list[_Order[Item, Outcome]]) -> None:
        """Put in the orders of the next batch, without those that were cancelled."""
        size = 0
        with self._door:
            while self._orders and (not batch or size + len(self._orders[0].items) <= self._most):
                order = self._orders.popleft()
                if order.future.set_running_or_notify_cancel():
                    batch.append(order)
                    size += len(order.items)

    def _settle(self, batch: Sequence[_Order[Item, Outcome]]) -> None:
        items = [item for order in batch for item in order.items]
        started = time.perf_counter()
        try:
            outcomes = iter(self._work(items))
        except Exception as error:  # noqa: BLE001 (the outcome of an order, raised by who asked)
            if len(batch) == 1 or isinstance(error, NOBODYS_FAULT):
                for order in batch:
                    order.future.set_exception(error)
                return
            for order in batch:  # one of them is at fault; the others shall not pay for it
                self._settle([order])
        else:
            seconds = (time.perf_counter() - started) / max(1, len(items))
            self.seconds_per_item += (0.3 if self.seconds_per_item else 1.0) * (seconds - self.seconds_per_item)
            for order in batch:
                order.future.set_result([next(outcomes) for _ in order.items])
