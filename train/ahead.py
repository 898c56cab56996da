"""Sample the trees of later steps while a step is trained (`train.staleness`).

A thread samples from the engine's own copy of the weights. Step s is trained on trees whose weights are at most
`staleness` updates older than those it changes; with 1, the trees of step s + 1 are sampled with the weights before
update s, while update s runs. Every token keeps the log-probability with which it was drawn, and the ratio that the
loss clips is that of the trained weights to it (`loss.py`).

The thread begins a step only with weights that are recent enough for it, so no tree is ever too old, however long
sampling, searching, training or validation take. The copy is refreshed between two steps of training, when the thread
is between two steps of sampling, so all turns of a step have one version. With staleness 1 everything is reproducible;
above, how old the weights are depends on how long sampling takes.
"""

import logging
import threading
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

from ..rollouts.engines.base import Engine, WeightSync
from ..rollouts.tree import Tree
from ..rollouts.tree_sampler import Clock, TreeSampler
from .distributed.processes import Processes

log = logging.getLogger(__name__)

Grow = Callable[[TreeSampler, int], list[Tree]]
"""Grows this process's trees of a step with a tree_sampler. It has no collective calls."""
_CLOSING_SECONDS = 60.0


class _Closed(BaseException):
    """Ends the thread in the middle of a step."""


class _ClosableEngine:
    """The engine, which raises _Closed instead of taking another call once the thread is to end."""

    def __init__(self, engine: Engine, closed: threading.Event) -> None:
        self._engine, self._closed = engine, closed

    def __getattr__(self, name: str) -> Any:
        if self._closed.is_set() and name != "cancel":
            raise _Closed
        return getattr(self._engine, name)


class Sampled(NamedTuple):
    """The trees of a step."""

    trees: list[Tree]
    seconds: dict[str, float]
    """The time of generation and retrieval, which runs beside the training."""
    version: int
    """Updates that the weights had seen which sampled them."""


class TreesAhead:
    """Trees of the next steps, sampled in a thread. It also stands in for the sampler whose weights it uses:
    `refresh` waits until the thread is idle and holds it until `sleep`.
    """

    def __init__(
        self,
        staleness: int,
        steps: int,
        tree_sampler: TreeSampler,
        weight_sync: WeightSync,
        grow: Grow,
        processes: Processes,
    ) -> None:
        """`steps`: of the whole run."""
        self.staleness = staleness
        self._steps, self._weight_sync, self._grow, self._processes = steps, weight_sync, grow, processes
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._tree_sampler = copy(tree_sampler)  # with clocks of its own
        self._tree_sampler.engine = _ClosableEngine(tree_sampler.engine, self._closed)
        self._version = -1
        """Updates that the weights of the engine have seen."""
        self._ready: dict[int, Sampled] = {}
        self._failure: BaseException | None = None
        self._next: int | None = None
        """The step that is sampled now or next; None before the first."""
        self._last = -1
        """The last step that may be sampled."""
        self._taken = -1
        """The step whose trees were taken last."""
        self._busy = self._held = False
        self._thread = threading.Thread(target=self._run, name="trees-ahead", daemon=True)

    def take(self, step: int) -> Sampled:
        """The trees of `step`, which is about to be trained; then sampling of the following ones goes on. Collective.

        Raises the error of the thread, in every process, and RuntimeError for trees that are older than `staleness`.
        """
        if self._next is None:
            self._begin(step)
        sampled = self._wait_for(step)
        if self._version < step:  # else a validation has sent them
            self._send_between_steps(step)
        with self._changed:
            self._taken, self._last = step, min(step + self.staleness, self._steps - 1)
            self._changed.notify_all()
        return sampled

    def refresh(self) -> None:
        """Wait until the thread is between two steps, hold it there, and bring the engine up to date. The step that was
        taken last has been trained. Collective."""

        def hold() -> None:
            with self._changed:
                self._held = True
                self._changed.wait_for(lambda: not self._busy)

        hold()
        self._send(self._taken + 1)

    def sleep(self) -> None:
        """Let the thread go on."""
        self._weight_sync.sleep()
        self._release()

    def close(self) -> None:
        """Sample no further step, and give up the one under way at the next call of the engine.

        A process that ends while its thread computes in PyTorch is aborted by the C++ runtime."""
        self._closed.set()
        with self._changed:
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
        self._weight_sync.refresh()
        self._version = step

    def _send_between_steps(self, step: int) -> None:
        """`_send`, unless the thread of a process is in the middle of a step. Until the weights are there no thread
        begins one. Collective."""
        with self._changed:
            self._held = not self._busy
        try:
            if all(self._processes.all_gather(self._held)):
                self._send(step)
        finally:
            self._release()

    def _release(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def _wait_for(self, step: int) -> Sampled:
        with self._changed:
            self._changed.wait_for(lambda: step in self._ready or self._failure is not None)
            if step not in self._ready:
                assert self._failure is not None
                raise self._failure
            sampled = self._ready.pop(step)
        if (age := step - sampled.version) > self.staleness:
            raise RuntimeError(f"the trees of step {step + 1} are {age} updates old, {self.staleness} are allowed")
        return sampled

    def _may_sample(self) -> bool:
        assert self._next is not None
        recent = self._version >= self._next - self.staleness
        return self._closed.is_set() or (self._next <= self._last and recent and not self._held)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._may_sample)
                if self._closed.is_set():
                    return
                assert self._next is not None
                step, version, self._busy = self._next, self._version, True
            failure, trees = None, list[Tree]()
            self._tree_sampler.clock = Clock()
            try:
                trees = self._grow(self._tree_sampler, step)
            except _Closed:
                return
            except BaseException as error:  # noqa: BLE001 (raised in the thread that trains)
                failure = error
            with self._changed:
                self._busy = False
                if failure is not None:
                    self._failure = failure
                    self._changed.notify_all()
                    return
                self._ready[step] = Sampled(trees, self._tree_sampler.clock.read(), version)
                self._next = step + 1
                self._changed.notify_all()
