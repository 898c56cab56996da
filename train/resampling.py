"""Dynamic sampling: replace questions without training signal, in a bounded number of extra rollouts.

A tree whose groups all tie takes a slot of the step and yields no gradient. Each round replaces all such trees by trees
of questions that no process has asked in this step yet. The draw depends on the seed, the step and the round alone, so
a resumed run and runs with another number of processes draw the same questions. A tree with a failed search stays:
an outage is not a tie and must not cause more requests. Trees still without signal after the last round stay too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Literal

from ..configs.schema import RunConfig
from ..data.mixed_ids import split_id
from ..data.types import Question
from ..rollouts.tree import Tree
from .credit import assign_credit
from .distributed.processes import Processes


@dataclass(frozen=True, slots=True)
class Resampled:
    """The trees to train on in this process, in the slots of the original questions, and totals of all processes."""

    trees: list[Tree]
    sampled: int
    """Number of questions sampled by all processes over all rounds, the first rollout included."""
    silent: int
    """Number of those whose tree had no signal."""
    rounds: int
    """Number of extra rollouts."""
    dropped: Sequence[Tree] = ()
    """The replaced trees of this process, which its counts of tokens and searches include."""

    def record(self) -> dict[str, float]:
        """For metrics.jsonl; the other metrics of a step describe only the final trees."""
        return {
            "resample/rounds": float(self.rounds),
            "resample/asked": float(self.sampled),
            "resample/silent_share": self.silent / max(1, self.sampled),
        }


def resample(
    config: RunConfig,
    trees: Sequence[Tree],
    questions: Mapping[str, Question],
    grow: Callable[[Sequence[Question]], Sequence[Tree]],
    step: int,
    processes: Processes | None = None,
) -> Resampled:
    """Replace trees without signal by trees of other `questions`, in at most `train.resample_rounds` rounds.

    `grow` samples one tree per question; every process calls it in every round, possibly without questions. In a mix of
    environments a tree is replaced by one of the same environment, which preserves the shares. Rounds end early if
    every tree has signal or no question is left. Collective: before the first round and after each.
    """
    processes = processes or Processes()
    rule = config.train.credit, config.reward.turn_weights
    current, dropped = list(trees), list[Tree]()
    silent_slots = _slots_without_signal(current, range(len(current)), *rule)
    initial = processes.all_gather(([tree.question.id for tree in current], _question_ids(current, silent_slots)))
    tried, to_replace = {name for names, _ in initial for name in names}, [names for _, names in initial]
    attempted, silent, rounds = sum(len(names) for names, _ in initial), sum(map(len, to_replace)), 0
    while any(to_replace) and rounds < config.train.resample_rounds:
        draw = Random(f"{config.seed}-{step}-{rounds + 1}")
        candidates = [name for name in questions if name not in tried]
        drawn = replacements(config.mix is not None, list(chain.from_iterable(to_replace)), candidates, draw)
        new = {name for name in drawn if name is not None}
        if not new:
            break
        rounds += 1
        begin = sum(map(len, to_replace[: processes.rank]))
        assigned = dict(zip(silent_slots, drawn[begin : begin + len(silent_slots)], strict=True))
        filled = {slot: name for slot, name in assigned.items() if name is not None}
        for slot, tree in zip(filled, grow([questions[name] for name in filled.values()]), strict=True):
            dropped.append(current[slot])
            current[slot] = tree
        still_silent = _slots_without_signal(current, list(filled), *rule)
        silent_slots = sorted([*still_silent, *(slot for slot in silent_slots if slot not in filled)])
        unfilled = len(drawn) - len(new)
        to_replace = processes.all_gather(_question_ids(current, silent_slots))
        tried |= new
        attempted, silent = attempted + len(new), silent + sum(map(len, to_replace)) - unfilled
    return Resampled(current, attempted, silent, rounds, dropped)


def _question_ids(trees: Sequence[Tree], slots: Sequence[int]) -> list[str]:
    return [trees[slot].question.id for slot in slots]


def replacements(
    mixed: bool, to_replace: Sequence[str], candidates: Sequence[str], draw: Random
) -> Sequence[str | None]:
    """A new question for each of `to_replace`, in a mix from the same environment; None where none is left."""

    def environment(question_id: str) -> str:
        return split_id(question_id)[0] if mixed else ""

    by_environment: dict[str, list[int]] = {}
    for slot, question_id in enumerate(to_replace):
        by_environment.setdefault(environment(question_id), []).append(slot)
    replacements: list[str | None] = [None] * len(to_replace)
    for name, slots in by_environment.items():
        remaining = [candidate for candidate in candidates if environment(candidate) == name]
        for slot, candidate in zip(slots, draw.sample(remaining, min(len(remaining), len(slots))), strict=False):
            replacements[slot] = candidate
    return replacements


def _slots_without_signal(
    trees: Sequence[Tree], slots: Sequence[int], credit: Literal["turn", "trajectory"], weights: Sequence[float]
) -> list[int]:
    """The slots whose tree was fully scored and has no signal: in each of its groups all values are equal."""

    def has_signal(tree: Tree) -> bool:
        return any(group.has_signal for group in assign_credit([tree], credit, weights, "none").groups)

    return [
        slot
        for slot in slots
        if all(node.reward is not None for node in trees[slot].walk()) and not has_signal(trees[slot])
    ]
