"""Growing trees while they are searched.

StreamingTreeSampler is for engines that take requests at any time (vLLM, a vLLM server): a turn is searched when it
ends and the turn below it is sampled at once, so nothing waits for the longest answer of a turn. While SEARCHES_AT_ONCE
requests are under way, turns that end are collected for the next one: the slower the service, the larger its batches.
Every sample has the random stream of its position in the tree, whichever answer or search ends first, and children are
in the order of their numbers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from ..envs.client.base import ReadingClient
from .conversation import Branch
from .engines.base import Completion, StreamingEngine
from .grow import TreeSampler
from .random_streams import stream
from .tree import Node

_Result = TypeVar("_Result")

SEARCHES_AT_ONCE = 4
"""Search requests that a process may have under way (docs/scale.md compares one, four and more)."""


@contextmanager
def _searcher(threads: int = 1) -> Iterator[ThreadPoolExecutor]:
    """Threads for searches. What ends the block early, such as a signal, does not wait for a search under way."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class StreamingTreeSampler(TreeSampler):
    """Grows trees with an engine that takes requests at any time."""

    engine: StreamingEngine

    def grow_from(self, branches: Sequence[Branch], branching: Sequence[int], greedy: bool, streams: bool) -> None:
        """As `TreeSampler.grow_from`; the time of `retrieve` is that in which nothing was sampled."""
        started = time.perf_counter()
        self.engine.wake()
        if not streams:
            _draw_streams(branches)
        # a reader answers one batch at a time
        at_once = 1 if isinstance(self.client, ReadingClient) else SEARCHES_AT_ONCE
        with _searcher(at_once) as searcher:
            growth = _Growth(self, branching, greedy, searcher, at_once)
            try:
                growth.run(branches)
            finally:
                self.engine.cancel()
        self.clock.add("generate", started + growth.waited)
        self.clock.seconds["retrieve"] = self.clock.seconds.get("retrieve", 0.0) + growth.waited


def _draw_streams(branches: Sequence[Branch]) -> None:
    """Name the branches' streams by torch's random stream on the CPU, which a checkpoint holds."""
    import torch

    start = int(torch.randint(2**62, ()).item())
    for number, branch in enumerate(branches):
        branch.stream = stream(start, number)


class _Answer(NamedTuple):
    """An answer that is sampled, or the turn that it became."""

    branch: Branch
    turn: int
    number: int
    """Among the answers of the branch."""


class _Growth:
    """The trees of one call."""

    def __init__(
        self,
        tree_sampler: StreamingTreeSampler,
        branching: Sequence[int],
        greedy: bool,
        searcher: ThreadPoolExecutor,
        searches_at_once: int,
    ) -> None:
        self.tree_sampler, self.branching, self.greedy = tree_sampler, branching, greedy
        self.searcher, self.searches_at_once = searcher, searches_at_once
        self.waited = 0.0
        """Seconds in which nothing was sampled."""
        self._ended: SimpleQueue[Callable[[], None]] = SimpleQueue()
        """What to do about every answer and search that has ended."""
        self._sampling = 0
        """The number of answers that are sampled now."""
        self._unsearched: list[tuple[_Answer, Node]] = []
        self._searches = 0
        """The number of requests under way."""
        self._grown: list[tuple[_Answer, Node]] = []

    def run(self, first: Sequence[Branch]) -> None:
        """Grow until everything has ended. Raises what sampling and searching raise."""
        for branch in first:
            self._ask(branch, 1)
        while self._sampling or self._searches:
            computed = bool(self._sampling) and self.tree_sampler.engine.advance()
            self._take_ended(wait=not computed)
            if self._unsearched and self._searches < self.searches_at_once:
                self._search()
        for answer, node in sorted(self._grown, key=lambda grown: grown[0].number):
            parent = answer.branch.parent
            (parent.children if parent else answer.branch.tree.roots).append(node)

    def _ask(self, branch: Branch, turn: int) -> None:
        self.tree_sampler.check_length([branch.prompt_ids])
        sampling = replace(self.tree_sampler.sampling(self.greedy), streams=(branch.stream,))
        futures = self.tree_sampler.engine.submit(branch.prompt_ids, self.branching[turn - 1], sampling)
        self._sampling += len(futures)
        for number, future in enumerate(futures):
            self._when_done(future, partial(self._answered, _Answer(branch, turn, number)))

    def _search(self) -> None:
        ended, self._unsearched = self._unsearched, []
        self._searches += 1
        turns = [(answer.branch, node) for answer, node in ended]
        self._when_done(self.searcher.submit(self.tree_sampler.search, turns), lambda _: self._searched(ended))

    def _when_done(self, future: Future[_Result], do: Callable[[_Result], None]) -> None:
        future.add_done_callback(lambda done: self._ended.put(lambda: do(done.result())))

    def _take_ended(self, wait: bool) -> None:
        if wait:
            started, idle = time.perf_counter(), not self._sampling
            self._ended.get()()
            self.waited += time.perf_counter() - started if idle else 0.0
        while not self._ended.empty():
            self._ended.get()()

    def _answered(self, answer: _Answer, completion: Completion) -> None:
        self._sampling -= 1
        self._unsearched.append((answer, self.tree_sampler.node(answer.branch, completion, answer.turn)))

    def _searched(self, searched: Sequence[tuple[_Answer, Node]]) -> None:
        self._searches -= 1
        self._grown += searched
        for answer, node in searched:
            if answer.turn < len(self.branching) and not node.rewrite.stop:
                documents = [hit.document for hit in node.ranking]
                self._ask(
                    self.tree_sampler.next_turn(answer.branch, node, documents, answer.turn + 1, answer.number),
                    answer.turn + 1,
                )
