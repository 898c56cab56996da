"""Dynamic sampling: questions that teach nothing make room for others, in a bounded number of extra rollouts.

A tree none of whose groups has signal (all tie) costs a place in the step and moves no weight. In each round all such
trees of a step are replaced by the trees of questions that were not asked in it yet, by any process. Which those are
depends on the seed, the step and the round alone, so a resumed run draws the same, and so does another number of
processes. A tree with an unscorable turn stays: an outage is no tie, and is not answered with more requests. What still
has no signal after the last round stays too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random

from ..configs.schema import RunConfig
from ..data.mixed_ids import split_id
from ..data.types import Question
from ..rollouts.tree import Tree
from .credit import assign_credit
from .processes import Processes


@dataclass(frozen=True, slots=True)
class Resampled:
    """The trees to train on in this process, in the places of the questions asked first, and what it took in all."""

    trees: list[Tree]
    asked: int
    """Questions that all processes asked over all rounds, the first rollout included."""
    silent: int
    """Those of them whose tree had no signal."""
    rounds: int
    """Extra rollouts."""
    dropped: Sequence[Tree] = ()
    """The trees of this process that made room: what they succeeded at is known all the same."""

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
    processes: Processes | None = None,
) -> Resampled:
    """Replace trees without signal by those of other `questions`, for at most `train.resample_rounds` rounds.

    `grow` samples one tree per question; every process calls it in every round, also with no question. In a mix of
    environments a tree makes room for one of its own environment, so that shares stay what they are. Rounds end early
    where every tree has signal or no question is left to ask. A meeting before the first round and after each.
    """
    processes = processes or Processes()
    kept, dropped = list(trees), list[Tree]()
    empty = _silent(kept, range(len(kept)), config)
    begun = processes.all(([tree.question.id for tree in kept], _asked(kept, empty)))
    tried, wanting = {name for names, _ in begun for name in names}, [names for _, names in begun]
    asked, silent, rounds = sum(len(names) for names, _ in begun), sum(map(len, wanting)), 0
    while any(wanting) and rounds < config.train.resample_rounds:
        draw = Random(f"{config.seed}-{step}-{rounds + 1}")
        others = [name for name in questions if name not in tried]
        drawn = _replacements(config, list(chain.from_iterable(wanting)), others, draw)
        new = {name for name in drawn if name is not None}
        if not new:
            break
        rounds += 1
        begin = sum(map(len, wanting[: processes.rank]))
        mine = dict(zip(empty, drawn[begin : begin + len(empty)], strict=True))
        filled = {place: name for place, name in mine.items() if name is not None}
        for place, tree in zip(filled, grow([questions[name] for name in filled.values()]), strict=True):
            dropped.append(kept[place])
            kept[place] = tree
        again = _silent(kept, list(filled), config)
        empty = sorted([*again, *(place for place in empty if place not in filled)])
        unfilled = len(drawn) - len(new)
        wanting = processes.all(_asked(kept, empty))
        tried |= new
        asked, silent = asked + len(new), silent + sum(map(len, wanting)) - unfilled
    return Resampled(kept, asked, silent, rounds, dropped)


def _asked(trees: Sequence[Tree], places: Sequence[int]) -> list[str]:
    return [trees[place].question.id for place in places]


def _replacements(
    config: RunConfig, wanting: Sequence[str], others: Sequence[str], draw: Random
) -> Sequence[str | None]:
    """For each of the questions `wanting`, another one to ask in its place, in a mix of its own environment.

    None where no question is left for it.
    """

    def environment(question_id: str) -> str:
        return split_id(question_id)[0] if config.mix is not None else ""

    by_environment: dict[str, list[int]] = {}
    for place, question_id in enumerate(wanting):
        by_environment.setdefault(environment(question_id), []).append(place)
    found: list[str | None] = [None] * len(wanting)
    for name, places in by_environment.items():
        left = [other for other in others if environment(other) == name]
        for place, other in zip(places, draw.sample(left, min(len(left), len(places))), strict=False):
            found[place] = other
    return found


def _silent(trees: Sequence[Tree], places: Sequence[int], config: RunConfig) -> list[int]:
    """The places whose tree was scored in full and has no signal."""
    return [
        place
        for place in places
        if all(node.reward is not None for node in trees[place].walk()) and not has_signal(trees[place], config)
    ]
