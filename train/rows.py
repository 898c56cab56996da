"""Trees as rows of TRL's batch: one row for every turn of every path from root to leaf.

A leaf brings all turns of its path, so a turn that k leaves share stands in k rows and weighs k times as much as a
leaf: that is the gradient of the expected trajectory reward (Yuan et al., eq. 3). Equal rows are computed once
(`packing.py`). Since a row is one turn, everything that TRL does within a row is done per turn: the mean of
`loss_type: grpo`, sequence-level ratios, masks of truncated completions.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.types import Question
from ..rollouts.streams import stream
from ..rollouts.tree import Node, Tree
from .credit import Credit
from .resampling import resample

if TYPE_CHECKING:
    from .trainer import TreeTrainer


def row_turns(trees: Sequence[Tree]) -> Iterator[Node]:
    """The turn of each row: trees in order, their paths in order, the turns of a path first to last."""
    return (node for tree in trees for path in tree.paths() for node in path)


def row_advantages(trees: Sequence[Tree], credit: Credit) -> Tensor:
    """The advantage of each row, (rows,); 0 where the turn was compared with nothing."""
    return torch.tensor([credit.of(node) for node in row_turns(trees)])


def row_mask(trees: Sequence[Tree], credit: Credit | None, mask_truncated: bool = False) -> Tensor:
    """1 for the rows that the loss looks at, (rows,): those with an advantage, or all of them where `credit` is None.

    `mask_truncated` takes out turns that were cut at their token limit, whatever else.
    """
    keep = [
        (credit is None or credit.has_signal(node)) and (node.finished or not mask_truncated)
        for node in row_turns(trees)
    ]
    return torch.tensor(keep, dtype=torch.long)


def path_reward(completions: Sequence[Any], path_reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """What TRL logs as reward: that of each turn. Advantages do not come from here."""
    return list(path_reward)


def rollout(prompts: Sequence[str], trainer: "TreeTrainer") -> dict[str, list[Any]]:
    """TRL's rollout function: grow one tree per distinct question and return a row per turn of every path."""
    rows = trainer.num_generations
    ids = list(prompts[::rows])
    if [question for question in ids for _ in range(rows)] != list(prompts):
        raise RuntimeError("the rows of a question were split over processes; make the batch a multiple of them")
    started = time.perf_counter()
    trainer.sampler.refresh()
    trainer.grower.clock.add("generate", started)
    trainer.trees = _grow(trainer, ids)
    started = time.perf_counter()
    trainer.sampler.rest()
    trainer.grower.clock.add("generate", started)
    turns = list(row_turns(trainer.trees))
    return {
        "prompt_ids": [list(node.prompt_ids) for node in turns],
        "completion_ids": [list(node.completion_ids) for node in turns],
        "logprobs": [node.logprobs or [None] * len(node.completion_ids) for node in turns],
        "path_reward": [node.reward for node in turns],
    }


def _grow(trainer: "TreeTrainer", ids: Sequence[str]) -> list[Tree]:
    """This process's trees of a step, those without signal replaced by others where the run asks for it. A meeting.

    A random stream is named by what is sampled, so that neither a resumed run nor another number of processes samples
    anything else. A question that a step asks again, for want of others, has a stream of its own each time.
    """
    run, step, processes = trainer.run, trainer.state.global_step, trainer.processes
    earlier = Counter(chain.from_iterable(processes.all(ids)[: processes.rank]))

    def grow(questions: Sequence[Question]) -> list[Tree]:
        streams = []
        for question in questions:
            repeat = [earlier[question.id]] if earlier[question.id] else []
            streams.append(stream(run.seed, step, question.id, *repeat))
            earlier[question.id] += 1
        return processes.together(
            lambda: trainer.grower.grow(questions, run.rollout.branching, streams=streams),
            interruptible=run.rollout.engine != "vllm",  # whose processes may share one model
        )

    trees = grow([trainer.questions[name] for name in ids])
    if run.train.resample_rounds:
        found = resample(run, trees, trainer.questions, grow, step, processes)
        trees, trainer.dropped, trainer.resampled = found.trees, found.dropped, found.record()
    return trees
