"""Growing trees while they are searched.

StreamingTreeSampler is for engines that take requests at any time (vLLM, a vLLM server): a turn is searched when it
ends and the turn below it is sampled at once, so nothing waits for the longest answer of a turn. While SEARCHES_AT_ONCE
requests are under way, turns that end are collected for the next one: the slower the service, the larger its batches.
Every sample has the random stream of its position in the tree, whichever answer or search ends first, and children are
in the order of their numbers.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import TypeVar, cast

from ..envs.client.base import ReadingClient
from .conversation import Branch
from .engines.base import Completion, StreamingEngine
from .tree import Node
from .tree_sampler import TreeSampler

_Result = TypeVar("_Result")

SEARCHES_AT_ONCE = 4
"""Search requests that a process may have under way (docs/scale.md compares one, four and more)."""


class StreamingTreeSampler(TreeSampler):
    """Grows trees with an engine that takes requests at any time."""

    @property
    def engine(self) -> StreamingEngine:
        return cast("StreamingEngine", self.policy.engine)

    def grow_from(self, branches: Sequence[Branch], branching: Sequence[int], greedy: bool) -> None:
        """As `TreeSampler.grow_from`; the time of `retrieve` is that in which nothing was sampled."""
        started = time.perf_counter()
        self.engine.wake()
        growth = _Growth(self, branching, greedy)
        try:
            growth.run(branches)
        finally:
            self.engine.cancel()
            growth.searcher.shutdown(wait=False, cancel_futures=True)  # a signal does not wait for a search under way
        self.clock.add("generate", started + growth.waited)
        self.clock.add("retrieve", time.perf_counter() - growth.waited)


class _Growth:
    """The trees of one call."""

    def __init__(self, tree_sampler: StreamingTreeSampler, branching: Sequence[int], greedy: bool) -> None:
        self.tree_sampler, self.branching, self.greedy = tree_sampler, branching, greedy
        # a reader answers one batch at a time
        self.searches_at_once = 1 if isinstance(tree_sampler.client, ReadingClient) else SEARCHES_AT_ONCE
        self.searcher = ThreadPoolExecutor(self.searches_at_once)
        self.waited = 0.0
        """Seconds in which nothing was sampled."""
        self._ended: SimpleQueue[Callable[[], None]] = SimpleQueue()
        """What to do about every answer and search that has ended."""
        self._sampling = self._searches = 0
        """The numbers of answers and of search requests under way."""
        self._unsearched: list[tuple[Branch, Node]] = []
        self._grown: list[tuple[Branch, Node]] = []

    def run(self, first: Sequence[Branch]) -> None:
        """Grow until everything has ended. Raises what sampling and searching raise."""
        for branch in first:
            self._ask(branch, 1)
        while self._sampling or self._searches:
            if not (self._sampling and self.tree_sampler.engine.advance()):
                started, idle = time.perf_counter(), not self._sampling
                self._ended.get()()
                self.waited += time.perf_counter() - started if idle else 0.0
            while not self._ended.empty():
                self._ended.get()()
            if self._unsearched and self._searches < self.searches_at_once:
                ended, self._unsearched = self._unsearched, []
                self._searches += 1
                search = self.searcher.submit(self.tree_sampler.search, ended)
                self._when_done(search, partial(self._searched, ended))
        for branch, node in sorted(self._grown, key=lambda grown: grown[1].number):
            branch.attach(node)

    def _ask(self, branch: Branch, turn: int) -> None:
        policy = self.tree_sampler.policy
        policy.check_length([branch.prompt_ids])
        sampling = policy.sampling([branch], self.greedy)
        futures = self.tree_sampler.engine.submit(branch.prompt_ids, self.branching[turn - 1], sampling)
        self._sampling += len(futures)
        for number, future in enumerate(futures):
            self._when_done(future, partial(self._answered, branch, turn, number))

    def _when_done(self, future: Future[_Result], do: Callable[[_Result], None]) -> None:
        future.add_done_callback(lambda done: self._ended.put(lambda: do(done.result())))

    def _answered(self, branch: Branch, turn: int, number: int, completion: Completion) -> None:
        self._sampling -= 1
        self._unsearched.append((branch, self.tree_sampler.policy.node(branch, completion, turn, number)))

    def _searched(self, searched: Sequence[tuple[Branch, Node]], _: None) -> None:
        self._searches -= 1
        self._grown += searched
        for branch, node in searched:
            if node.turn < len(self.branching) and node.grows:
                self._ask(self.tree_sampler.next_turn(branch, node), node.turn + 1)
