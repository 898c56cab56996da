"""Sample the trees of later steps while a step is trained (`train.staleness`).

A thread samples from the engine's own copy of the weights. Step s is trained on trees whose weights are at most
`staleness` updates older than those it changes; with 1, the trees of step s + 1 are sampled with the weights before
update s, while update s runs. Every token keeps the log-probability with which it was drawn, and the ratio that the
loss clips is that of the trained weights to it (`loss.py`).

The copy is refreshed when a step begins to be trained, once the thread is between two steps of sampling, so all turns
of a step have one version, and the thread goes at most `staleness` steps further, so that no tree is ever too old. With
staleness 1 everything is reproducible; above, how old the weights are depends on how long sampling takes.
"""

import logging
import threading
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

from ..rollouts.engines.base import Engine, WeightSync
from ..rollouts.tree import Tree
from ..rollouts.tree_sampler import Clock, TreeSampler

log = logging.getLogger(__name__)

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


class RolloutPrefetcher:
    """Trees of the next steps, sampled in a thread. It also stands in for the weight sync that it uses: `refresh` waits
    until the thread is idle and holds it until `sleep`.
    """

    def __init__(
        self,
        staleness: int,
        steps: int,
        tree_sampler: TreeSampler,
        weight_sync: WeightSync,
        grow: Callable[[TreeSampler, int], list[Tree]],
    ) -> None:
        """`steps`: of the whole run. `grow` gives this process's trees of a step, without a collective call."""
        self.staleness = staleness
        self._steps, self._weight_sync, self._grow = steps, weight_sync, grow
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._tree_sampler = copy(tree_sampler)  # with clocks of its own
        self._tree_sampler.engine = _ClosableEngine(tree_sampler.engine, self._closed)
        self._version = -1
        """Updates that the weights of the engine have seen."""
        self._ready: dict[int, Sampled | BaseException] = {}
        self._taken = -1
        """The step whose trees were taken last."""
        self._last = -1
        """The last step that may be sampled."""
        self._busy = self._held = False
        self._thread: threading.Thread | None = None

    def take(self, step: int) -> Sampled:
        """The trees of `step`, which is about to be trained; then sampling of the following ones goes on. Collective.

        Raises the error of the thread.
        """
        if self._thread is None:
            self._begin(step)
        with self._changed:
            self._changed.wait_for(lambda: step in self._ready)
            sampled = self._ready.pop(step)
        if isinstance(sampled, BaseException):
            raise sampled
        if self._version < step:  # else a validation has sent the weights
            self._taken = step - 1
            self.refresh()
        self._taken, self._last = step, min(step + self.staleness, self._steps - 1)
        self._release()
        return sampled

    def refresh(self) -> None:
        """Wait until the thread is between two steps, hold it there, and bring the engine up to date. The step that was
        taken last has been trained. Collective."""
        with self._changed:
            self._held = True
            self._changed.wait_for(lambda: not self._busy)
        self._weight_sync.refresh()
        self._version = self._taken + 1

    def sleep(self) -> None:
        """Let the thread go on."""
        self._weight_sync.sleep()
        self._release()

    def close(self) -> None:
        """Sample no further step, and give up the one under way at the next call of the engine.

        A process that ends while its thread computes in PyTorch is aborted by the C++ runtime."""
        self._closed.set()
        self._release()
        if self._thread is not None:
            self._thread.join(_CLOSING_SECONDS)

    def _begin(self, step: int) -> None:
        if step:
            log.warning(
                "the trees that were sampled ahead are not part of a checkpoint: those of step %d are sampled again, "
                "with the weights of the checkpoint", step + 1,
            )  # fmt: skip
        self._taken, self._last = step - 1, step
        self.refresh()
        self._release()
        self._thread = threading.Thread(target=self._run, args=(step,), name="prefetcher", daemon=True)
        self._thread.start()

    def _release(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def _run(self, step: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed.is_set() or (step <= self._last and not self._held))  # noqa: B023
                if self._closed.is_set():
                    return
                self._busy, version = True, self._version
            self._tree_sampler.clock = Clock()
            sampled: Sampled | BaseException
            try:
                sampled = Sampled(self._grow(self._tree_sampler, step), self._tree_sampler.clock.read(), version)
            except _Closed:
                return
            except BaseException as error:  # noqa: BLE001 (raised in the thread that trains)
                sampled = error
            with self._changed:
                self._busy, self._ready[step] = False, sampled
                self._changed.notify_all()
            if isinstance(sampled, BaseException):
                return
            step += 1
