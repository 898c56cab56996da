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
from ..data.mixed_ids import split_id
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
    dropped: Sequence[Tree] = ()
    """The trees that made room: what they succeeded at is known all the same."""

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

    `grow` samples one tree per question. In a mix of environments a tree makes room for one of its own environment, so
    that shares stay what they are. Rounds end early where every tree has signal or no question is left to ask.
    """
    kept = list(trees)
    tried = {tree.question.id for tree in kept}
    empty = _silent(kept, range(len(kept)), config)
    asked, silent, rounds = len(kept), len(empty), 0
    dropped: list[Tree] = []
    while empty and rounds < config.train.resample_rounds:
        draw = Random(f"{config.seed}-{step}-{rounds + 1}-{process}")
        names, places = _replacements(config, kept, empty, [name for name in questions if name not in tried], draw)
        if not names:
            break
        rounds += 1
        dropped += [kept[place] for place in places]
        for place, tree in zip(places, grow([questions[name] for name in names]), strict=True):
            kept[place] = tree
        tried.update(names)
        again = _silent(kept, places, config)
        asked, silent = asked + len(names), silent + len(again)
        empty = sorted([*again, *(place for place in empty if place not in places)])
    return Resampled(kept, asked, silent, rounds, dropped)


def _replacements(
    config: RunConfig, trees: Sequence[Tree], empty: Sequence[int], others: Sequence[str], draw: Random
) -> tuple[list[str], list[int]]:
    """Ids of `others` and the places of `empty` that they fill; in a mix each is of the environment of its place."""

    def environment(question_id: str) -> str:
        return split_id(question_id)[0] if config.mix is not None else ""

    by_environment: dict[str, list[int]] = {}
    for place in empty:
        by_environment.setdefault(environment(trees[place].question.id), []).append(place)
    names: list[str] = []
    places: list[int] = []
    for name, mine in by_environment.items():
        left = [other for other in others if environment(other) == name]
        chosen = draw.sample(left, min(len(left), len(mine)))
        names += chosen
        places += mine[: len(chosen)]
    return names, places


def _silent(trees: Sequence[Tree], places: Sequence[int], config: RunConfig) -> list[int]:
    """The places whose tree was scored in full and has no signal."""
    return [
        place
        for place in places
        if all(node.reward is not None for node in trees[place].walk()) and not has_signal(trees[place], config)
    ]
