"""Sample the trees of later steps while a step is trained (`train.staleness`).

A thread samples from the engine's own copy of the weights. Step s is trained on trees whose weights are at most
`staleness` updates older than those it changes; with 1, the trees of step s + 1 are sampled with the weights before
update s, while update s runs. Every token keeps the log-probability with which it was drawn, so the loss corrects for
the older weights as it does for another engine (`mismatch.py`), and every turn the versions of the weights.

When the copy is refreshed depends on `train.in_flight_updates`:

- Off: between two steps of training, when the thread is between two steps of sampling. All turns of a tree have one
  version. With staleness 1 everything is reproducible; above, how old the weights are depends on how long sampling
  takes. The thread waits for weights, so no tree is ever too old.
- On: before every step of training, also in the middle of a step of sampling, between two calls of the engine or, where
  it takes requests at any time, between two tokens. The thread never waits for weights, and training for the end of a
  call only while it lacks trees. A tree with a turn that is too old is dropped, and sampled again with the newest
  weights, for which training waits, and for the step that is being sampled.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

from ..rollouts.conversation import Clock
from ..rollouts.engines.base import Weights
from ..rollouts.grow import Grower
from ..rollouts.tree import Tree
from .distributed.processes import Processes
from .in_flight import VersionedEngine, oldest_version

log = logging.getLogger(__name__)

Grow = Callable[[Grower, int, Sequence[int] | None], list[Tree]]
"""Grows this process's trees of a step with a grower, or those at some positions. It has no collective calls."""
_CLOSING_SECONDS = 5.0


class Sampled(NamedTuple):
    """The trees of a step."""

    trees: list[Tree]
    seconds: dict[str, float]
    """The time of generation and retrieval, which runs beside the training."""
    dropped: Sequence[Tree] = ()
    """Trees that were too old; `trees` has others in their positions."""


class TreesAhead:
    """Trees of the next steps, sampled in a thread. It also stands in for the sampler whose weights it uses:
    `refresh` waits until the thread is idle and holds it until `sleep`.
    """

    def __init__(
        self,
        staleness: int,
        steps: int,
        grower: Grower,
        sampler: Weights,
        grow: Grow,
        processes: Processes,
        in_flight: bool = False,
    ) -> None:
        """`steps`: of the whole run; `in_flight`: `train.in_flight_updates`."""
        self.staleness, self.in_flight = staleness, in_flight
        self._steps, self._sampler, self._grow, self._processes = steps, sampler, grow, processes
        self._changed = threading.Condition()
        self._engine = VersionedEngine(grower.engine, self._changed)
        self._grower = copy(grower)  # with clocks of its own
        self._grower.engine = self._engine
        self._ready: dict[int, Sampled] = {}
        self._failure: BaseException | None = None
        self._next: int | None = None
        """The step that is sampled now or next; None before the first."""
        self._last = -1
        """The last step that may be sampled."""
        self._busy = self._held = self._closed = False
        self._thread = threading.Thread(target=self._sample, name="trees-ahead", daemon=True)

    def take(self, step: int) -> Sampled:
        """The trees of `step`, which is about to be trained; then sampling of the following ones goes on. Collective.

        Raises the error of the thread, in every process.
        """
        if self._next is None:
            self._begin(step)
        elif self.in_flight:
            self._send_in_flight(step)
        sampled = self._processes.on_every_process(lambda: self._wait_for(step))
        if self.in_flight:
            sampled = self._replace_stale(step, sampled)
        else:
            with self._changed:
                idle = not self._busy
            if all(self._processes.all_gather(idle)):
                self._send(step)
        with self._changed:
            self._last = min(step + self.staleness, self._steps - 1)
            self._changed.notify_all()
        return sampled

    def refresh(self) -> None:
        """Wait until the thread is between two steps, hold it there, and bring the engine up to date. Collective."""

        def hold() -> None:
            with self._changed:
                self._held = True
                self._changed.wait_for(lambda: not self._busy)

        self._processes.on_every_process(hold)
        self._sampler.refresh()

    def sleep(self) -> None:
        """Let the thread go on."""
        self._sampler.sleep()
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def close(self) -> None:
        """Sample no further step; the one that is sampled may still run for some seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_CLOSING_SECONDS)

    def _begin(self, step: int) -> None:
        if step:
            log.warning(
                "the trees that were sampled ahead are not part of a checkpoint: those of step %d are sampled again, "
                "with the weights of the checkpoint", step + 1,
            )  # fmt: skip
        self._send(step)
        self._next = self._last = step
        self._thread.start()

    def _send(self, step: int) -> None:
        """Give the engine the weights that have seen `step` updates. Collective."""
        self._engine.arriving = step
        self._sampler.refresh()
        self._engine.version = step

    def _send_in_flight(self, step: int) -> None:
        """`_send` while trees grow, between two calls of the engine. Where one runs, this waits for its end as long as
        the trees of `step` are not there; after that the weights are not sent. Collective."""

        def between_calls() -> bool:
            with self._changed:
                self._engine.paused = True
                self._changed.wait_for(lambda: not self._engine.sampling or step in self._ready)
                return not self._engine.sampling

        try:
            if all(self._processes.all_gather(self._processes.on_every_process(between_calls))):
                self._send(step)
        finally:
            with self._changed:
                self._engine.paused = False
                self._changed.notify_all()

    def _replace_stale(self, step: int, sampled: Sampled) -> Sampled:
        """Drop the trees that have a turn which is too old for `step`, and sample them again. Collective."""
        trees = list(sampled.trees)
        stale = [position for position, tree in enumerate(trees) if step - oldest_version(tree) > self.staleness]
        if not any(self._processes.all_gather(bool(stale))):
            return sampled
        self.refresh()
        try:
            self._engine.arriving = self._engine.version = step
            self._grower.clock, self._grower.searched = Clock(), Clock()
            again = self._processes.on_every_process(lambda: self._grow(self._grower, step, stale) if stale else [])
        finally:
            self.sleep()
        for position, tree in zip(stale, again, strict=True):
            trees[position] = tree
        return sampled._replace(trees=trees, dropped=[sampled.trees[position] for position in stale])

    def _wait_for(self, step: int) -> Sampled:
        with self._changed:
            self._changed.wait_for(lambda: step in self._ready or self._failure is not None)
            if step not in self._ready:
                assert self._failure is not None
                raise self._failure
            return self._ready.pop(step)

    def _may_sample(self) -> bool:
        assert self._next is not None
        recent = self.in_flight or self._engine.version >= self._next - self.staleness
        return self._closed or (self._next <= self._last and recent and not self._held)

    def _sample(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._may_sample)
                if self._closed:
                    return
                assert self._next is not None
                step, self._busy = self._next, True
            failure, trees = None, list[Tree]()
            self._grower.clock, self._grower.searched = Clock(), Clock()
            try:
                trees = self._grow(self._grower, step, None)
            except BaseException as error:  # noqa: BLE001 (raised in the thread that trains)
                failure = error
            with self._changed:
                self._busy = False
                if failure is not None:
                    self._failure = failure
                    self._changed.notify_all()
                    return
                self._ready[step] = Sampled(trees, self._grower.clock.read())
                self._next = step + 1
                self._changed.notify_all()
