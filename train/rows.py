"""Trees as rows: what TRL is given for a step, one row per leaf, and which of their tokens teach what."""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.types import Question
from ..rollouts.streams import stream
from ..rollouts.tree import Node, Tree
from .credit import Credit
from .mismatch import sampled_logprobs
from .resampling import resample

if TYPE_CHECKING:
    from .trainer import TreeTrainer


def token_advantages(
    trees: Sequence[Tree], credit: Credit, width: int, keep_all: bool = False, mask_truncated: bool = False
) -> tuple[Tensor, Tensor]:
    """Per-token advantages and loss mask, both (leaves, width), rows in the order of the trees' paths.

    A turn that several leaves share carries its advantage and its mask in the first of their rows only. Observation
    tokens are masked. Turns without signal are masked too, unless `keep_all` (a KL or entropy term acts on them).
    `mask_truncated` masks turns that were cut, whatever else.
    """
    paths = [path for tree in trees for path in tree.paths()]
    advantages, mask = torch.zeros(len(paths), width), torch.zeros(len(paths), width, dtype=torch.long)
    seen: set[int] = set()
    for row, path in enumerate(paths):
        start = len(path[0].prompt_ids)
        for node in path:
            if id(node) in seen:
                continue
            seen.add(id(node))
            if not (keep_all or credit.teaches(node)) or (mask_truncated and not node.finished):
                continue
            begin = len(node.prompt_ids) - start
            cells = slice(begin, begin + len(node.completion_ids))
            advantages[row, cells] = credit.of(node)
            mask[row, cells] = 1
    return advantages, mask


def path_reward(completions: Sequence[Any], path_reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """What TRL logs as reward: the last turn's. Advantages do not come from here."""
    return list(path_reward)


def rollout(prompts: Sequence[str], trainer: "TreeTrainer") -> dict[str, list[Any]]:
    """TRL's rollout function: grow one tree per distinct question and return a row per leaf."""
    leaves = trainer.num_generations
    ids = list(prompts[::leaves])
    if [question for question in ids for _ in range(leaves)] != list(prompts):
        raise RuntimeError(
            "the leaves of a question were split over processes; make the batch a multiple of the leaves"
        )
    started = time.perf_counter()
    trainer.sampler.refresh()
    trainer.grower.clock.add("generate", started)
    trainer.trees = _grow(trainer, ids)
    started = time.perf_counter()
    trainer.sampler.rest()
    trainer.grower.clock.add("generate", started)
    names = ("prompt_ids", "completion_ids", "env_mask", "logprobs", "path_reward")
    rows: dict[str, list[Any]] = {name: [] for name in names}
    for tree in trainer.trees:
        for path in tree.paths():
            prompt, completion, mask = flatten(path)
            rows["prompt_ids"].append(prompt)
            rows["completion_ids"].append(completion)
            rows["env_mask"].append(mask)
            rows["logprobs"].append(sampled_logprobs(path, len(completion)))
            rows["path_reward"].append(path[-1].reward)
    # What old and reference log-probabilities are asked for: every sampled token, shared turns once.
    width = max(map(len, rows["completion_ids"]))
    trainer._sampled = token_advantages(trainer.trees, Credit({}, []), width, keep_all=True)[1].bool()
    return rows


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


def flatten(path: Sequence[Node]) -> tuple[list[int], list[int], list[int]]:
    """One leaf as TRL sees it: prompt ids, completion ids (turns and observations), 1 where the id was sampled."""
    prompt = list(path[0].prompt_ids)
    completion: list[int] = []
    mask: list[int] = []
    for node in path:
        observation = node.prompt_ids[len(prompt) + len(completion) :]
        completion += [*observation, *node.completion_ids]
        mask += [0] * len(observation) + [1] * len(node.completion_ids)
    return prompt, completion, mask
