"""Dynamic sampling: questions that teach nothing make room for others, in a bounded number of extra rollouts.

A tree none of whose groups has signal (all tie) costs a place in the step and moves no weight. In each round all such
trees of a step are replaced by the trees of questions that were not asked in it yet. Which those are depends on the
seed, the step, the round and the process alone, so a resumed run draws the same. A tree with an unscorable turn stays:
an outage is no tie, and is not answered with more requests. What still has no signal after the last round stays too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ..configs.schema import RunConfig
from ..data.types import Question
from ..rollouts.tree import Tree
from .credit import assign_credit


@dataclass(frozen=True, slots=True)
class Resampled:
    """The trees to train on, in the places of the questions that were asked first, and what it took."""

    trees: list[Tree]
    asked: int
    """Questions asked over all rounds, the first rollout included."""
    silent: int
    """Those of them whose tree had no signal."""
    rounds: int
    """Extra rollouts."""

    def record(self) -> dict[str, float]:
        """For metrics.jsonl; other figures of a step describe only the trees that were kept."""
        return {
            "resample/rounds": float(self.rounds),
            "resample/asked": float(self.asked),
            "resample/silent_share": self.silent / max(1, self.asked),
        }


def has_signal(tree: Tree, config: RunConfig) -> bool:
    """Whether any turn of the tree will get an advantage."""
    credit = assign_credit([tree], config.train.credit, config.reward.turn_weights, "none")
    return any(group.has_signal for group in credit.groups)


def resample(
    config: RunConfig,
    trees: Sequence[Tree],
    questions: Mapping[str, Question],
    grow: Callable[[Sequence[Question]], Sequence[Tree]],
    step: int,
    process: int = 0,
) -> Resampled:
    """Replace trees without signal by those of other `questions`, for at most `train.resample_rounds` rounds.

    `grow` samples one tree per question. Rounds end early where every tree has signal or no question is left to ask.
    """
    kept = list(trees)
    tried = {tree.question.id for tree in kept}
    empty = _silent(kept, range(len(kept)), config)
    asked, silent, rounds = len(kept), len(empty), 0
    while empty and rounds < config.train.resample_rounds:
        others = [name for name in questions if name not in tried]
        if not others:
            break
        rounds += 1
        draw = Random(f"{config.seed}-{step}-{rounds}-{process}")
        names = draw.sample(others, min(len(others), len(empty)))
        places = empty[: len(names)]
        for place, tree in zip(places, grow([questions[name] for name in names]), strict=True):
            kept[place] = tree
        tried.update(names)
        again = _silent(kept, places, config)
        asked, silent = asked + len(names), silent + len(again)
        empty = sorted([*again, *empty[len(names) :]])
    return Resampled(kept, asked, silent, rounds)


def _silent(trees: Sequence[Tree], places: Sequence[int], config: RunConfig) -> list[int]:
    """The places whose tree was scored in full and has no signal."""
    return [
        place
        for place in places
        if all(node.reward is not None for node in trees[place].walk()) and not has_signal(trees[place], config)
    ]
