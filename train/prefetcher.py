"""Sample the trees of the next step while a step is trained (`train.staleness: 1`).

A thread samples from the engine's own copy of the weights, which is refreshed between two steps of sampling: the trees
of step s + 1 are sampled with the weights before update s, while update s runs. Every token keeps the log-probability
with which it was drawn, and the ratio that the loss clips is that of the trained weights to it (`loss.py`). A run is
reproducible.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from typing import NamedTuple

from ..rollouts.engines.base import WeightSync
from ..rollouts.tree import Tree
from ..rollouts.tree_sampler import Clock, TreeSampler

log = logging.getLogger(__name__)


class Sampled(NamedTuple):
    """The trees of a step."""

    trees: list[Tree]
    seconds: dict[str, float]
    """The time of generation and retrieval, which runs beside the training."""
    version: int
    """Updates that the weights had seen which sampled them."""


class RolloutPrefetcher:
    """Trees of the next step, sampled in a thread. It also stands in for the weight sync that it uses."""

    def __init__(
        self,
        steps: int,
        tree_sampler: TreeSampler,
        weight_sync: WeightSync,
        grow: Callable[[TreeSampler, int], list[Tree]],
    ) -> None:
        """`steps`: of the whole run. `grow` gives this process's trees of a step, without a collective call."""
        self._steps, self._weight_sync, self._grow = steps, weight_sync, grow
        self._tree_sampler = copy(tree_sampler)  # with clocks of its own
        self._thread = ThreadPoolExecutor(1, "prefetcher")
        self._version = -1
        """Updates that the weights of the engine have seen."""
        self._next = 0
        """The step that is trained next."""
        self._ahead: Future[Sampled] | None = None
        """The trees of that step."""

    def take(self, step: int) -> Sampled:
        """The trees of `step`, which is about to be trained; then those of the next one are sampled. Collective.

        Raises the error of the thread.
        """
        self._next = step
        if self._ahead is None:
            if step:
                log.warning(
                    "the trees that were sampled ahead are not part of a checkpoint: those of step %d are sampled "
                    "again, with the weights of the checkpoint", step + 1,
                )  # fmt: skip
            self.refresh()
            self._sample(step)
        assert self._ahead is not None
        sampled = self._ahead.result()
        if self._version < step:  # else a validation has sent the weights
            self.refresh()
        if step + 1 < self._steps:
            self._sample(step + 1)
        self._next = step + 1
        return sampled

    def refresh(self) -> None:
        """Wait until the thread is between two steps, and bring the engine up to date. Collective."""
        if self._ahead is not None:
            self._ahead.exception()
        self._weight_sync.refresh()
        self._version = self._next

    def sleep(self) -> None:
        """As of the weight sync."""
        self._weight_sync.sleep()

    def close(self) -> None:
        """Sample no further step, and wait for the one under way: a process that ends while a thread of it computes in
        PyTorch is aborted by the C++ runtime."""
        self._thread.shutdown(cancel_futures=True)

    def _sample(self, step: int) -> None:
        version = self._version

        def sample() -> Sampled:
            self._tree_sampler.clock = Clock()
            return Sampled(self._grow(self._tree_sampler, step), self._tree_sampler.clock.read(), version)

        self._ahead = self._thread.submit(sample)
