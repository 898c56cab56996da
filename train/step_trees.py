"""The trees of a step: which questions it has, from which random streams they are sampled, and what is replaced.

The questions of a step and its random numbers depend on the seed and the step alone, so a resumed run and another
number of processes sample the same.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import torch

from ..configs.schema import RunConfig
from ..data.types import Question
from ..rollouts.engines.base import WeightSync
from ..rollouts.random_streams import stream
from ..rollouts.tree import Tree
from ..rollouts.tree_sampler import TreeSampler
from .ahead import TreesAhead
from .distributed.processes import Processes
from .resampling import resample

if TYPE_CHECKING:
    from .staged import StagedQuestions


class StepTrees:
    """Samples the trees of a run step by step, or takes those that were sampled ahead (`train.staleness`)."""

    def __init__(
        self,
        run: RunConfig,
        tree_sampler: TreeSampler,
        weight_sync: WeightSync,
        questions: Sequence[Question],
        order: Sequence[str] | None = None,
        processes: Processes | None = None,
        staged: "StagedQuestions | None" = None,
    ) -> None:
        """`order`: the ids of the questions of all steps; None shuffles `questions` anew in every pass."""
        self.run, self.tree_sampler, self.weight_sync, self.staged = run, tree_sampler, weight_sync, staged
        self.processes = processes or Processes()
        self.questions = {question.id: question for question in questions}
        self._names = list(order or self.questions)
        self._order = self._steps(shuffle=order is None)
        self._drawn: list[list[str]] = []
        self.dropped: Sequence[Tree] = ()
        """Trees of this step that were replaced."""
        self.resampled: dict[str, float] = {}
        """Metrics of dynamic sampling."""
        self.seconds: dict[str, float] = {}
        """Seconds of generation and retrieval that ran beside the training of earlier steps."""
        self.staleness = 0.0
        """Updates that the weights which sampled the trees were behind."""
        self.ahead: TreesAhead | None = None
        if staleness := run.train.staleness:
            self.ahead = TreesAhead(
                staleness, run.train.steps, tree_sampler, weight_sync, self._grow_ahead, self.processes
            )

    def sample(self, step: int) -> list[Tree]:
        """This process's trees of the step that follows `step` updates. Collective."""
        if self.ahead is not None:
            return self._take(self.ahead, step)
        started = time.perf_counter()
        self.weight_sync.refresh()
        self.tree_sampler.clock.add("generate", started)
        trees = self._grow(step)
        started = time.perf_counter()
        self.weight_sync.sleep()
        self.tree_sampler.clock.add("generate", started)
        return trees

    def ids_of(self, step: int) -> list[str]:
        """The ids of this process's questions."""
        every = self._all_ids(step)
        share = len(every) // self.processes.count
        return every[self.processes.rank * share :][:share]

    def _all_ids(self, step: int) -> list[str]:
        rollout = step // self.run.train.num_iterations
        while len(self._drawn) <= rollout:
            self._drawn.append(next(self._order))
        return self._drawn[rollout]

    def _steps(self, shuffle: bool) -> Iterator[list[str]]:
        """The questions of each step. A pass leaves out those that are too few for a step."""
        size, generator = self.run.train.questions_per_step, torch.Generator().manual_seed(self.run.seed)
        for _ in count():
            names = self._names
            if shuffle:
                names = [names[index] for index in torch.randperm(len(names), generator=generator).tolist()]
            yield from (names[begin : begin + size] for begin in range(0, len(names) - size + 1, size))

    def _take(self, ahead: TreesAhead, step: int) -> list[Tree]:
        started = time.perf_counter()
        sampled = ahead.take(step)
        self.tree_sampler.clock.add("wait", started)
        self.seconds, self.staleness = sampled.seconds, float(step - sampled.version)
        return sampled.trees

    def _grow_ahead(self, tree_sampler: TreeSampler, step: int) -> list[Tree]:
        """This process's trees of a step, which may be a later one; as `sample`, without a collective call."""
        questions, earlier = self._asked(step)
        streams = question_streams(self.run.seed, step, questions, earlier)
        return tree_sampler.grow(questions, self.run.rollout.branching, streams=streams)

    def _asked(self, step: int) -> tuple[list[Question], Counter[str]]:
        """This process's questions, and how often those of lower rank ask each."""
        ids = self.ids_of(step)
        earlier = Counter(self._all_ids(step)[: self.processes.rank * len(ids)])
        return [self.questions[name] for name in ids], earlier

    def _grow(self, step: int) -> list[Tree]:
        """This process's trees of a step, with dynamic sampling if configured. Collective."""
        run, processes = self.run, self.processes
        asked, earlier = self._asked(step)
        draw = Random(f"{run.seed}-{step}-first-stage")

        def grow(batch: Sequence[Question]) -> list[Tree]:
            questions = batch if self.staged is None else self.staged.ready(batch, self.questions, draw)
            streams = question_streams(run.seed, step, questions, earlier)
            return self.tree_sampler.grow(questions, run.rollout.branching, streams=streams)

        trees = grow(asked)
        if run.train.resample_rounds:
            resampled = resample(run, trees, self.questions, grow, step, processes)
            trees, self.dropped, self.resampled = resampled.trees, resampled.dropped, resampled.record()
        return trees


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
