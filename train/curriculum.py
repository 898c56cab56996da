"""Choose the questions of each step, from one or several environments, by weight, pass and previous success.

Success s ∈ [0, 1] of a question is the mean metric of its scored last turns when it was last asked; that of an
environment is the running mean over steps, s ← m·s + (1 − m)·(mean of the step's questions) with m = `memory`.

    chance(s) = 1                                     prefer: none
                floor + (1 − floor)·(1 − s)           prefer: hard
                floor + (1 − floor)·4·s·(1 − s)       prefer: learnable

An environment's share of the questions of a step is weight · chance, normalized over all environments. Within an
environment, questions come in shuffled passes; a question asked before is skipped with probability 1 − chance(its
success). Anything never asked has chance 1.

Every draw is a pure function of the seed, the step and the `Progress` so far: a resumed run, and every process of a
run, draw the same questions as an uninterrupted run.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from statistics import fmean
from typing import Self

from ..configs.curriculum import CurriculumConfig


@dataclass(frozen=True, slots=True)
class Progress:
    """The complete state of a curriculum, as plain data."""

    positions: Mapping[str, int] = field(default_factory=dict)
    """Number of questions of each environment that were asked or skipped, over all passes."""
    environments: Mapping[str, float] = field(default_factory=dict)
    """Running mean success of each environment asked so far."""
    questions: Mapping[str, float] = field(default_factory=dict)
    """Success of each question asked so far, by id."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Mapping[str, float]]) -> Self:
        """Read what `dataclasses.asdict` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            positions={str(name): int(value) for name, value in plain["positions"].items()},
            environments={str(name): float(value) for name, value in plain["environments"].items()},
            questions={str(name): float(value) for name, value in plain["questions"].items()},
        )


class Curriculum:
    """Draws questions for the steps of one run."""

    def __init__(
        self,
        weights: Mapping[str, float],
        questions: Mapping[str, Sequence[str]],
        settings: CurriculumConfig,
        seed: int,
    ) -> None:
        """`weights` > 0 and the ids of the questions (at least one each, all distinct), both by environment."""
        self.weights, self.settings, self.seed = dict(weights), settings, seed
        self._questions = {name: list(ids) for name, ids in questions.items()}
        self._environment_of = {question_id: name for name, ids in questions.items() for question_id in ids}
        self._orders: dict[str, tuple[int, list[str]]] = {}

    def chance(self, success: float | None) -> float:
        """Acceptance probability for this success, in [floor, 1]; None means never asked."""
        if success is None or self.settings.prefer == "none":
            return 1.0
        preference = 1 - success if self.settings.prefer == "hard" else 4 * success * (1 - success)
        return self.settings.floor + (1 - self.settings.floor) * preference

    def shares(self, progress: Progress) -> dict[str, float]:
        """Share of each environment in the next step; shares sum to 1."""
        products = {name: w * self.chance(progress.environments.get(name)) for name, w in self.weights.items()}
        total = sum(products.values())
        return {name: value / total for name, value in products.items()}

    def draw(self, progress: Progress, step: int, count: int) -> tuple[list[str], Progress]:
        """The ids of the `count` questions of a step, and the progress with the new positions.

        Each environment gets its share of `count`, rounded up or down so that the mean over steps is exact (systematic
        sampling). A question repeats within a step only if its environment has fewer questions than slots in it.
        """
        random = Random(f"{self.seed}/{step}")
        shares = self.shares(progress)
        names, edges = list(shares), list(accumulate(shares.values()))
        start = random.random()
        picked = [names[min(bisect_right(edges, (start + slot) / count), len(names) - 1)] for slot in range(count)]
        random.shuffle(picked)
        positions = {name: progress.positions.get(name, 0) for name in names}
        drawn: list[str] = []
        taken: dict[str, set[str]] = {name: set() for name in names}
        for name in picked:
            if len(taken[name]) == len(self._questions[name]):
                taken[name].clear()
            question_id, positions[name] = self._next(name, positions[name], progress, random, taken[name])
            taken[name].add(question_id)
            drawn.append(question_id)
        return drawn, Progress(positions, progress.environments, progress.questions)

    def learn(self, progress: Progress, outcomes: Sequence[tuple[str, float]]) -> Progress:
        """The progress after a step: `outcomes` are id and success of every question that was scored."""
        by_environment: dict[str, list[float]] = {}
        by_question: dict[str, list[float]] = {}
        for question_id, success in outcomes:
            by_environment.setdefault(self._environment_of[question_id], []).append(success)
            by_question.setdefault(question_id, []).append(success)
        environments = dict(progress.environments)
        for name, values in by_environment.items():
            mean = fmean(values)
            memory = self.settings.memory
            environments[name] = memory * environments[name] + (1 - memory) * mean if name in environments else mean
        questions = {question_id: fmean(values) for question_id, values in by_question.items()}
        return Progress(progress.positions, environments, {**progress.questions, **questions})

    def _next(self, name: str, position: int, progress: Progress, random: Random, taken: set[str]) -> tuple[str, int]:
        """The next question of an environment that is neither taken nor skipped, and the position after it."""
        size = len(self._questions[name])
        while True:
            question_id = self._order(name, position // size)[position % size]
            position += 1
            if question_id not in taken and random.random() < self.chance(progress.questions.get(question_id)):
                return question_id, position

    def _order(self, name: str, number: int) -> list[str]:
        """The questions of an environment in the order of pass `number`."""
        cached = self._orders.get(name)
        if cached is None or cached[0] != number:
            shuffled = Random(f"{self.seed}/{name}/{number}").sample(self._questions[name], len(self._questions[name]))
            cached = self._orders[name] = number, shuffled
        return cached[1]
