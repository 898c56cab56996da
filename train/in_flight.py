"""The engine of trees that are sampled ahead: which weights sampled what, and when weights may change."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import cast

from ..rollouts.engines.base import Completion, Engine, Sampling, StreamingEngine
from ..rollouts.tree import Tree


class VersionedEngine:
    """Notes with every sample the versions of the weights that sampled it: the updates that these had seen.

    Weights may change between two calls of `generate`, for which `paused` keeps the next call waiting, and at any time
    while samples run that were submitted.
    """

    def __init__(self, engine: Engine, changed: threading.Condition) -> None:
        """`changed` guards and announces changes of `paused` and `sampling`."""
        self.engine, self.tokenizer, self.stop_ids = engine, engine.tokenizer, engine.stop_ids
        self.version = self.arriving = -1
        """`arriving` is above `version` while weights are sent."""
        self.paused = self.sampling = False
        self._changed = changed

    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """The samples of the engine, all of one version. Waits while the engine is paused."""
        with self._changed:
            self._changed.wait_for(lambda: not self.paused)
            self.sampling, version = True, self.version
        try:
            samples = self.engine.generate(prompts, n, sampling)
        finally:
            with self._changed:
                self.sampling = False
                self._changed.notify_all()
        return [[replace(sample, versions=(version, version)) for sample in group] for group in samples]

    def submit(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Future[Completion]]:
        """Begin `n` samples, which may end with newer weights than they began with."""
        oldest = self.version
        return [self._versioned(future, oldest) for future in self._streaming.submit(prompt, n, sampling)]

    def _versioned(self, sampled: Future[Completion], oldest: int) -> Future[Completion]:
        versioned = Future[Completion]()

        def pass_on(done: Future[Completion]) -> None:
            if done.cancelled():
                versioned.cancel()
            elif (error := done.exception()) is not None:
                versioned.set_exception(error)
            else:
                versioned.set_result(replace(done.result(), versions=(oldest, self.arriving)))

        sampled.add_done_callback(pass_on)
        return versioned

    def wake(self) -> None:
        self._streaming.wake()

    def advance(self) -> bool:
        return self._streaming.advance()

    def cancel(self) -> None:
        self._streaming.cancel()

    @property
    def _streaming(self) -> StreamingEngine:
        """Only a grower for engines that take requests at any time calls what needs one."""
        return cast(StreamingEngine, self.engine)


def staleness_metrics(trees: Sequence[Tree], step: int) -> dict[str, float]:
    """How many updates the weights that sampled the trees of `step` were behind: the oldest, the mean over sampled
    tokens, and the newest. Tokens of a turn that ran while weights were sent count as the oldest of it."""
    turns = [(node.versions, len(node.completion_ids)) for tree in trees for node in tree.walk() if node.versions]
    tokens = sum(length for _, length in turns)
    return {
        "sampling/staleness": float(max(step - oldest for (oldest, _), _ in turns)),
        "sampling/staleness_mean": sum((step - oldest) * length for (oldest, _), length in turns) / max(1, tokens),
        "sampling/staleness_min": float(min(step - newest for (_, newest), _ in turns)),
    }
