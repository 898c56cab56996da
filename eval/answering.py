"""Answer questions in batches, two at a time: one generates while the other waits for its search results.

Each batch runs in its own thread, and a lock lets only one of these threads work at a time. Generation always runs in
the caller's thread: Ctrl-C stops an evaluation at once, and the engine is only ever called from one thread. Batches
group questions of similar length, because an engine pads to the longest.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

from ..configs.schema import RewardConfig, RolloutConfig
from ..data.types import Question
from ..envs.client.base import StepClient
from ..envs.server.schemas import HitBody, Step, StepResult
from ..rewriters.base import Rewriter
from ..rollouts.engines.base import Completion, Engine, Sampling
from ..rollouts.grow import Grower
from ..rollouts.memory import give_back_freed_memory
from ..rollouts.random_streams import stream
from ..rollouts.tree import Tree

UNDER_WAY = 2
"""Concurrent batches: one generates, one searches."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How the model is run on every question."""

    turns: int
    metrics: Sequence[str]
    """Metrics that the environment computes; the first one is the reward."""
    samples: int | None = None
    """None decodes greedily."""
    seed: int = 0
    """Seed of the samples. A question's samples do not depend on its batch."""

    @property
    def paths(self) -> int:
        """Answers per question."""
        return self.samples or 1


@dataclass(frozen=True, slots=True)
class AnsweredBatch:
    """A finished batch."""

    trees: list[Tree]
    seconds: list[float]
    """Seconds of generation and search per turn and path: the batch's time, divided equally."""


def batches(questions: Sequence[Question], size: int) -> list[list[Question]]:
    """Batches of at most `size` questions of similar length, longest first to run out of memory early if at all."""
    ordered = sorted(questions, key=lambda question: len(question.text), reverse=True)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def answers(
    parts: Iterable[Sequence[Question]],
    asking: Asking,
    engine: Engine,
    client: StepClient,
    rewriter: Rewriter,
    rollout: RolloutConfig,
) -> Iterator[AnsweredBatch]:
    """Yield finished batches, not always in the order of `parts`.

    Raises what growing a tree raises, without waiting for the other batch.
    """
    coordinator = _Coordinator()
    pending = iter(parts)
    under_way = 0
    try:
        while True:
            while under_way < UNDER_WAY and (part := next(pending, None)) is not None:
                worker = _Worker(part, asking, coordinator, engine, client, rewriter, rollout)
                threading.Thread(target=worker.run, name="querylect-batch", daemon=True).start()
                under_way += 1
            if not under_way:
                return
            message = coordinator.inbox.get()
            if isinstance(message, _GenerationRequest):
                message.answer(engine)
                continue
            under_way -= 1
            if isinstance(message, BaseException):
                raise message
            yield message
            give_back_freed_memory()
    finally:
        coordinator.close()


class _ClosedError(Exception):
    """The caller has stopped; the results of running batches are not needed."""


@dataclass(frozen=True, slots=True)
class _GenerationRequest:
    """A batch's request to generate completions."""

    prompts: Sequence[Sequence[int]]
    n: int
    sampling: Sampling
    result: Future[tuple[list[list[Completion]], float]]

    def answer(self, engine: Engine) -> None:
        """Generate. An error goes to the batch, which raises it."""
        started = time.perf_counter()
        try:
            samples = engine.generate(self.prompts, self.n, self.sampling)
        except Exception as error:  # noqa: BLE001 (raised again by the batch that asked)
            self.result.set_exception(error)
        else:
            self.result.set_result((samples, time.perf_counter() - started))


class _Coordinator:
    """Passes requests and results between the caller's thread and the batch threads."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[_GenerationRequest | AnsweredBatch | BaseException] = SimpleQueue()
        self.work_lock = threading.Lock()
        """Held by the batch thread that is working."""
        self._open = True
        self._lock = threading.Lock()

    def ask(self, request: _GenerationRequest) -> tuple[list[list[Completion]], float]:
        """Let the caller's thread generate; another batch may work meanwhile."""
        with self._lock:
            if not self._open:
                raise _ClosedError
            self.inbox.put(request)
        self.work_lock.release()
        try:
            return request.result.result()
        finally:
            self.work_lock.acquire()

    def close(self) -> None:
        """Refuse new requests and cancel those in the queue."""
        with self._lock:
            self._open = False
        while not self.inbox.empty():
            message = self.inbox.get()
            if isinstance(message, _GenerationRequest):
                message.result.set_exception(_ClosedError())


class _Worker:
    """One batch. It wraps the engine and the client for its grower and measures their time."""

    def __init__(
        self,
        part: Sequence[Question],
        asking: Asking,
        coordinator: _Coordinator,
        engine: Engine,
        client: StepClient,
        rewriter: Rewriter,
        rollout: RolloutConfig,
    ) -> None:
        self.tokenizer, self.stop_ids = engine.tokenizer, engine.stop_ids
        self._part, self._asking, self._coordinator, self._client = part, asking, coordinator, client
        self._seconds: list[float] = []
        reward_metric, *extra_metrics = asking.metrics
        self._grower = Grower(self, rewriter, self, rollout, RewardConfig(metric=reward_metric), extra_metrics)

    def run(self) -> None:
        """Grow the batch's trees and send them, or the error, to the caller."""
        asking = self._asking
        with self._coordinator.work_lock:
            try:
                branching = [asking.paths, *[1] * (asking.turns - 1)]
                streams = [stream("eval", asking.seed, question.id) for question in self._part]
                greedy = asking.samples is None
                trees = self._grower.grow(self._part, branching, greedy, None if greedy else streams)
                shares = [seconds / (len(self._part) * asking.paths) for seconds in self._seconds]
                self._coordinator.inbox.put(AnsweredBatch(trees, shares))
            except BaseException as error:  # noqa: BLE001 (raised again by the caller's thread)
                self._coordinator.inbox.put(error)

    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Like the engine's `generate`, in the caller's thread. Each call starts a new turn."""
        samples, seconds = self._coordinator.ask(_GenerationRequest(prompts, n, sampling, Future()))
        self._seconds.append(seconds)
        return samples

    def step(
        self, steps: Sequence[Step], *, with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Like the client's `step`, while other batches work. The last turn requests no document texts."""
        last = len(self._seconds) == self._asking.turns
        self._coordinator.work_lock.release()
        started = time.perf_counter()
        try:
            results = self._client.step(steps, with_text=with_text and not last, metrics=metrics)
            self._seconds[-1] += time.perf_counter() - started
        finally:
            self._coordinator.work_lock.acquire()
        return [_without_texts(result) for result in results] if last else list(results)


def _without_texts(result: StepResult | None) -> StepResult | None:
    """The result with empty document texts, as for a request without texts."""
    if result is None:
        return None
    hits = [HitBody(id=hit.id, score=hit.score, title="", text="") for hit in result.ranking]
    return result.model_copy(update={"ranking": hits})
