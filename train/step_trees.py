"""The trees of a step: which questions it has, from which random streams they are sampled, and what is replaced.

The questions of a step and its random numbers depend on the seed and the step alone, so a resumed run and another
number of processes sample the same.

With `train.staleness: 1` a thread samples the trees of step s + 1 with the weights before update s, while update s
runs. It uses the engine's own copy of the weights, which is refreshed between two steps. Every token keeps the
log-probability with which it was drawn, and the loss clips the ratio of the trained weights to it (loss.py).
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from itertools import chain
from random import Random
from typing import NamedTuple

import numpy as np
import torch

from ..configs.schema import RunConfig
from ..data.types import Question, split_id
from ..envs.client.base import ReadingClient, StepClient
from ..errors import EnvironmentUnavailableError
from ..rollouts.engines.base import WeightSync, stream
from ..rollouts.tree import Tree
from ..rollouts.tree_sampler import Clock, TreeSampler
from .credit import assign_credit
from .metrics import by_environment
from .processes import Processes
from .turns import Turns, turns_of

log = logging.getLogger(__name__)

Grow = Callable[[Sequence[Question]], list[Tree]]


class StepTrees:
    """Samples the trees of a run step by step, or takes those that were sampled ahead (`train.staleness`)."""

    def __init__(
        self,
        run: RunConfig,
        tree_sampler: TreeSampler,
        weight_sync: WeightSync,
        questions: Sequence[Question],
        order: Sequence[str],
        processes: Processes,
    ) -> None:
        """`order`: the ids of the questions of all steps, one step after another."""
        self.run, self.tree_sampler, self.weight_sync, self.processes = run, tree_sampler, weight_sync, processes
        self.questions = {question.id: question for question in questions}
        self._order = list(order)
        self.dropped: Sequence[Tree] = ()
        """Trees of this step that dynamic sampling replaced."""
        self.metrics: Mapping[str, float] = {}
        """Of dynamic sampling, and the staleness."""
        self.seconds: Mapping[str, float] = {}
        """Seconds of generation and retrieval that ran beside the training of earlier steps."""
        self.prefetcher: RolloutPrefetcher | None = None
        if run.train.staleness:
            self.prefetcher = RolloutPrefetcher(run.train.steps, tree_sampler, weight_sync, self._grow)

    def sample(self, step: int) -> list[Tree]:
        """This process's trees of the step that follows `step` updates, with dynamic sampling if configured.
        Collective."""
        started, clock = time.perf_counter(), self.tree_sampler.clock
        if self.prefetcher is not None:
            sampled = self.prefetcher.take(step)
            clock.add("wait", started)
            self.seconds, self.metrics = sampled.seconds, {"sampling/staleness": float(step - sampled.version)}
            return sampled.trees
        self.weight_sync.refresh()
        clock.add("generate", started)
        trees = self._grow(self.tree_sampler, step)
        if self.run.train.resample_rounds:
            _, earlier = self.questions_of(step)
            earlier.update(tree.question.id for tree in trees)

            def grow(batch: Sequence[Question]) -> list[Tree]:
                streams = question_streams(self.run.seed, step, batch, earlier)
                return self.tree_sampler.grow(batch, self.run.rollout.branching, streams=streams)

            resampled = resample(self.run, trees, self.questions, grow, step, self.processes)
            trees, self.dropped, self.metrics = resampled
        started = time.perf_counter()
        self.weight_sync.sleep()
        clock.add("generate", started)
        return trees

    def questions_of(self, step: int) -> tuple[list[Question], Counter[str]]:
        """This process's questions of a step, and how often those of lower rank ask each."""
        size, rollout = self.run.train.questions_per_step, step // self.run.train.num_iterations
        ids, share = self._order[rollout * size :][:size], size // self.processes.count
        start = self.processes.rank * share
        return [self.questions[name] for name in ids[start : start + share]], Counter(ids[:start])

    def _grow(self, tree_sampler: TreeSampler, step: int) -> list[Tree]:
        """This process's trees of a step, which may be a later one; without a collective call."""
        questions, earlier = self.questions_of(step)
        streams = question_streams(self.run.seed, step, questions, earlier)
        return tree_sampler.grow(questions, self.run.rollout.branching, streams=streams)


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


def question_streams(seed: int, step: int, questions: Sequence[Question], earlier: Counter[str]) -> list[int]:
    """The random stream of each question, keyed by seed, step and question. A question repeated within a step gets a
    separate stream each time.

    `earlier` counts the questions of processes of lower rank, and gets these.
    """
    streams = []
    for question in questions:
        repeat = [earlier[question.id]] if earlier[question.id] else []
        streams.append(stream(seed, step, question.id, *repeat))
        earlier[question.id] += 1
    return streams


def resample(
    config: RunConfig,
    trees: Sequence[Tree],
    questions: Mapping[str, Question],
    grow: Grow,
    step: int,
    processes: Processes,
) -> tuple[list[Tree], list[Tree], dict[str, float]]:
    """Dynamic sampling: replace trees without signal by trees of other `questions`, in at most `train.resample_rounds`
    rounds; (the trees to train on, in the slots of `trees`, those that were replaced, metrics).

    A tree whose groups all tie yields no gradient. Each round replaces all of them by trees of questions that no
    process has asked in this step yet, in a mix of the same environment. A tree with a failed search stays: an outage
    is not a tie and must not cause more requests. Trees still without signal after the last round stay too.

    The draw depends on the seed, the step and the round alone. `grow` samples one tree per question; every process
    calls it in every round, possibly without questions. Collective: before the first round and after each.
    """
    current, dropped = list(trees), list[Tree]()
    tried: set[str] = set()
    sampled = silent = rounds = unfilled = 0
    new = [tree.question.id for tree in current]
    while True:
        slots = [slot for slot, tree in enumerate(current) if _is_silent(tree, config)]
        every = processes.all_gather((new, [current[slot].question.id for slot in slots]))
        tried.update(name for names, _ in every for name in names)
        to_replace = [names for _, names in every]
        sampled += sum(len(names) for names, _ in every)
        silent += sum(map(len, to_replace)) - unfilled
        candidates = [name for name in questions if name not in tried]
        draw = Random(f"{config.seed}-{step}-{rounds + 1}")
        drawn = replacements(config.mix is not None, list(chain.from_iterable(to_replace)), candidates, draw)
        if rounds == config.train.resample_rounds or not any(drawn):
            break
        rounds, unfilled = rounds + 1, drawn.count(None)
        begin = sum(map(len, to_replace[: processes.rank]))
        assigned = zip(slots, drawn[begin : begin + len(slots)], strict=True)
        filled = {slot: name for slot, name in assigned if name is not None}
        new = list(filled.values())
        for slot, tree in zip(filled, grow([questions[name] for name in new]), strict=True):
            dropped.append(current[slot])
            current[slot] = tree
    metrics = {"rounds": float(rounds), "asked": float(sampled), "silent_share": silent / max(1, sampled)}
    return current, dropped, {f"resample/{name}": value for name, value in metrics.items()}


def replacements(
    mixed: bool, to_replace: Sequence[str], candidates: Sequence[str], draw: Random
) -> Sequence[str | None]:
    """A new question for each of `to_replace`, in a mix from the same environment; None where none is left."""

    def environment(question_id: str) -> str:
        return split_id(question_id)[0] if mixed else ""

    drawn: list[str | None] = [None] * len(to_replace)
    for name in dict.fromkeys(map(environment, to_replace)):
        slots = [slot for slot, question_id in enumerate(to_replace) if environment(question_id) == name]
        remaining = [candidate for candidate in candidates if environment(candidate) == name]
        for slot, candidate in zip(slots, draw.sample(remaining, min(len(remaining), len(slots))), strict=False):
            drawn[slot] = candidate
    return drawn


def _is_silent(tree: Tree, config: RunConfig) -> bool:
    """Whether a tree was fully scored and has no signal: in each of its groups all values are equal."""
    turns = turns_of([tree], config.reward.turn_weights)
    groups = assign_credit(turns, config.train.credit, "none").groups
    return bool(turns.scored.all()) and not any(group.has_signal for group in groups)


def refuse_outage(turns: Turns, client: StepClient, mixed: bool, subject: str) -> None:
    """Raise EnvironmentUnavailableError if an environment answered no search of `turns`; `subject` begins the message.

    An outage must not become a reward, and an outage of one environment would silently change the mix. Malformed turns
    are scored without a search, so they are ignored here. Turns that stopped before any search, which only the reader
    answers, count where nothing was searched.
    """
    environments = by_environment(turns) if mixed else {"": np.ones(len(turns.questions), bool)}
    planned, stopped = turns.figure("planned") == 1, turns.figure("stopped") == 1
    for name, trees in environments.items():
        rows = trees[turns.tree]
        scorable = rows & (planned if planned[rows].any() else stopped)
        if scorable.any() and not turns.scored[scorable].any():
            answering = f"the environment {name}".rstrip() + (" or the reader" * isinstance(client, ReadingClient))
            raise EnvironmentUnavailableError(
                f"{subject} could be scored: {answering} did not answer before its deadline. Last failure: "
                f"{getattr(client, 'last_failure', None)}. Bring the service back and continue with: querylect train "
                "… --resume"
            )


def random_states() -> Callable[[], None]:
    """What brings back the present random states of Python, NumPy, PyTorch on the CPU, and every GPU."""
    python, arrays, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(cpu)
        torch.cuda.set_rng_state_all(cuda)

    return restore
