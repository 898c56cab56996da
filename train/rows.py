"""Trees as rows of TRL's batch: one row for every turn of every path from root to leaf.

Each leaf contributes all turns of its path, so a turn shared by k leaves has k rows and k times the weight of a leaf:
this is the gradient of the expected trajectory reward (Yuan et al., eq. 3). Equal rows are computed once (packing.py).
TRL takes equally many rows of every question: a path that stopped early repeats its last turn, outside of the loss.
Since a row is one turn, everything that TRL does per row is done per turn: the mean of `loss_type: grpo`,
sequence-level ratios, masks of truncated completions.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Protocol, TypedDict

import torch
from torch import Tensor

from ..configs.schema import RunConfig
from ..data.types import Question
from ..rollouts.engines.base import Weights
from ..rollouts.grow import Grower
from ..rollouts.random_streams import stream
from ..rollouts.tree import Node, Tree
from .ahead import TreesAhead
from .credit import Credit
from .distributed.processes import Processes
from .resampling import resample
from .staged import StagedQuestions

if TYPE_CHECKING:
    from transformers import TrainerState


class RolloutState(Protocol):
    """What a rollout takes from the trainer (`TreeTrainer`), and leaves there."""

    run: RunConfig
    processes: Processes
    grower: Grower
    sampler: Weights
    questions: Mapping[str, Question]
    staged: StagedQuestions | None
    num_generations: int
    state: "TrainerState"
    trees: list[Tree]
    dropped: Sequence[Tree]
    resampled: dict[str, float]
    ahead: TreesAhead | None
    rollout_seconds: dict[str, float]
    staleness: float


class RolloutRows(TypedDict):
    """What TRL takes of a rollout, by row."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    logprobs: list[list[float] | list[None]]
    path_reward: list[float | None]


def row_turns(trees: Sequence[Tree]) -> Iterator[Node]:
    """The turn of each row: trees in order, their paths in order, the turns of a path first to last."""
    return (node for node, _ in _rows(trees))


def _rows(trees: Sequence[Tree]) -> Iterator[tuple[Node, bool]]:
    """The turn of each row, and whether the row only fills up a path that stopped."""
    for tree in trees:
        for path in tree.paths():
            yield from ((node, False) for node in path)
            yield from [(path[-1], True)] * (tree.turns - len(path))


def row_advantages(trees: Sequence[Tree], credit: Credit) -> Tensor:
    """The advantage of each row, (rows,); 0 for turns without one, and for rows that fill up."""
    return torch.tensor([0.0 if filling else credit.of(node) for node, filling in _rows(trees)])


def row_mask(trees: Sequence[Tree], credit: Credit | None) -> Tensor:
    """1 for the rows that enter the loss, (rows,): those with an advantage, or all of them if `credit` is None. Rows
    that fill up are never in the loss."""
    keep = [not filling and (credit is None or credit.has_signal(node)) for node, filling in _rows(trees)]
    return torch.tensor(keep, dtype=torch.long)


def path_reward(completions: Sequence[object], path_reward: Sequence[float | None], **_: object) -> list[float | None]:
    """The reward of each turn, for TRL's log only; advantages are computed elsewhere."""
    return list(path_reward)


def rollout(prompts: Sequence[str], trainer: RolloutState) -> RolloutRows:
    """TRL's rollout function: grow one tree per distinct question and return a row per turn of every path."""
    rows = trainer.num_generations
    ids = list(prompts[::rows])
    if [question for question in ids for _ in range(rows)] != list(prompts):
        raise RuntimeError("the rows of a question were split over processes; make the batch a multiple of them")
    trainer.trees = _take(trainer, trainer.ahead, ids) if trainer.ahead is not None else _sample(trainer, ids)
    turns = list(row_turns(trainer.trees))
    return {
        "prompt_ids": [list(node.prompt_ids) for node in turns],
        "completion_ids": [list(node.completion_ids) for node in turns],
        "logprobs": [node.logprobs or [None] * len(node.completion_ids) for node in turns],
        "path_reward": [node.reward for node in turns],
    }


def _take(trainer: RolloutState, ahead: TreesAhead, ids: Sequence[str]) -> list[Tree]:
    step, started = trainer.state.global_step, time.perf_counter()
    sampled = ahead.take(step)
    trainer.grower.clock.add("wait", started)
    if [tree.question.id for tree in sampled.trees] != list(ids):
        raise RuntimeError("the trees that were sampled ahead are of other questions than the step has")
    trainer.rollout_seconds, trainer.staleness = sampled.seconds, float(step - sampled.version)
    return sampled.trees


def _sample(trainer: RolloutState, ids: Sequence[str]) -> list[Tree]:
    started = time.perf_counter()
    trainer.sampler.refresh()
    trainer.grower.clock.add("generate", started)
    trees = _grow(trainer, ids)
    started = time.perf_counter()
    trainer.sampler.sleep()
    trainer.grower.clock.add("generate", started)
    return trees


def _grow(trainer: RolloutState, ids: Sequence[str]) -> list[Tree]:
    """This process's trees of a step, with dynamic resampling if configured. Collective."""
    run, step, processes = trainer.run, trainer.state.global_step, trainer.processes
    earlier = Counter(chain.from_iterable(processes.all_gather(ids)[: processes.rank]))

    draw = Random(f"{run.seed}-{step}-first-stage")

    def grow(batch: Sequence[Question]) -> list[Tree]:
        questions = batch if trainer.staged is None else trainer.staged.ready(batch, trainer.questions, draw)
        streams = question_streams(run.seed, step, questions, earlier)
        return processes.on_every_process(
            lambda: trainer.grower.grow(questions, run.rollout.branching, streams=streams),
            interruptible=run.rollout.engine != "vllm",  # vLLM processes may share one model
        )

    trees = grow([trainer.questions[name] for name in ids])
    if run.train.resample_rounds:
        resampled = resample(run, trees, trainer.questions, grow, step, processes)
        trees, trainer.dropped, trainer.resampled = resampled.trees, resampled.dropped, resampled.record()
    return trees


def question_streams(seed: int, step: int, questions: Sequence[Question], earlier: Counter[str]) -> list[int]:
    """The random stream of each question, keyed by seed, step and question, so that a resumed run and another number of
    processes sample the same. A question repeated within a step gets a separate stream each time.

    `earlier` counts the questions of processes of lower rank, and gets these.
    """
    streams = []
    for question in questions:
        repeat = [earlier[question.id]] if earlier[question.id] else []
        streams.append(stream(seed, step, question.id, *repeat))
        earlier[question.id] += 1
    return streams
