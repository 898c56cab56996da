"""Credit assignment: from the rewards of the trees of a step to one advantage per sampled turn.

`turn` credit (Yuan et al., eq. 4–5): the value of a turn is compared with those of the other answers to the same state.
The value is λ·reward plus the value of the next state, which is the mean value of the answers sampled there.
A turn that stopped also has the λ of the turns that it leaves out, and the price of a turn's search is subtracted.
`trajectory` credit (the independent baseline): the weighted reward sum of a path is compared with those of all paths of
the question, and a turn gets the mean advantage of the paths through it.

Two turns answer the same state if question and prompt ids are equal, regardless of their parent or tree: where three of
four first turns have the same text, their second turns form one group. Turns with a failed search (reward None) are
excluded from every baseline and get no advantage; a tie gives exactly 0.

A baseline over n values that includes m values of the turn itself shrinks its advantage by (n − m)/n. This factor
varies: a state that several turns reach has a larger group, and a first turn is part of more paths than a last one.
Therefore advantages are rescaled to the factor of the question's first turns; where all factors are equal, this is
exactly eq. 2–5. `turn` credit with `scale: group` needs no rescaling: every group has standard deviation 1.

An advantage does not depend on the number of leaves below a turn: the loss applies that weight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan
from random import Random
from statistics import fmean, stdev
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .turns import Floats, Ints, Turns

TIE = 1e-9
"""Values that differ by at most this are equal."""

Scale = Literal["group", "batch", "none"]


@dataclass(frozen=True, slots=True)
class Group:
    """Alternatives that are compared with each other."""

    turn: int
    """Their turn; of paths, the last."""
    members: Ints
    """(m,) rows of `Turns`; of a path, that of its last turn."""
    values: Floats
    """(m,) NaN where a search failed."""

    @property
    def scored(self) -> list[float]:
        """The values that are known."""
        return [value for value in self.values.tolist() if value == value]

    @property
    def has_signal(self) -> bool:
        """Whether at least two alternatives were scored and they differ."""
        scored = self.scored
        return len(scored) > 1 and max(scored) - min(scored) > TIE


@dataclass(frozen=True, slots=True)
class Credit:
    """The advantages of n turns, and the groups that they were computed from."""

    advantages: Floats
    """(n,) NaN without signal: after a failed search, in a tie, and where there is nothing to compare with."""
    groups: Sequence[Group]

    @property
    def has_signal(self) -> NDArray[np.bool_]:
        """(n,) whether the turn was scored in a group of differing values; its advantage may still be 0."""
        return ~np.isnan(self.advantages)


def assign_credit(turns: Turns, credit: Literal["turn", "trajectory"], scale: Scale) -> Credit:
    """The credit of all turns of a step.

    `scale`: divide by the standard deviation of the group (`group`), of all values of the turn (`batch`), or by 1.
    """
    groups = _state_groups(turns) if credit == "turn" else _path_groups(turns)
    spread = _spreads(groups, scale)
    strengths = _strengths(groups, turns) if credit == "turn" and scale != "group" else [1.0] * len(groups)
    advantages = np.full(len(turns.turn), nan)
    for group, strength in zip(groups, strengths, strict=True):
        if group.has_signal:
            above = group.values - fmean(group.scored)
            above[np.abs(above) <= TIE] = 0.0
            advantages[group.members] = above / (spread(group) / strength)
    if credit == "trajectory":
        advantages = _mean_over_paths(turns, advantages, groups)
    return Credit(advantages, groups)


def _members(keys: Sequence[int], rows: Sequence[int]) -> dict[int, list[int]]:
    """The rows of each key, in the order in which they come."""
    members: dict[int, list[int]] = {}
    for key, row in zip(keys, rows, strict=True):
        members.setdefault(key, []).append(row)
    return members


def _state_groups(turns: Turns) -> list[Group]:
    """One group per state, by values λ·reward − cost + the mean value of the next state."""
    states, numbers = turns.state.tolist(), turns.turn.tolist()
    members = _members(states, range(len(states)))
    following = dict(zip(turns.parent.tolist(), states, strict=True))
    values = turns.value.copy()
    for _, rows in sorted(members.items(), key=lambda item: -numbers[item[1][0]]):
        for row in rows:
            if row in following:
                later = values[members[following[row]]]
                later = later[~np.isnan(later)]
                values[row] += fmean(later) if len(later) else nan
    return [Group(numbers[rows[0]], np.array(rows), values[rows]) for rows in members.values()]


def _path_groups(turns: Turns) -> list[Group]:
    """One group per first state: all its paths, by the sums of their values."""
    values, roots = turns.along_paths(turns.value), turns.state.copy()
    for row, parent in enumerate(turns.parent.tolist()):
        if parent >= 0:
            roots[row] = roots[parent]
    paths = np.repeat(np.flatnonzero(turns.ends), turns.leaves[turns.ends])
    groups = _members(roots[paths].tolist(), paths.tolist())
    return [Group(turns.depth, np.array(rows), values[rows]) for rows in groups.values()]


def _mean_over_paths(turns: Turns, leaf_advantages: Floats, groups: Sequence[Group]) -> Floats:
    """(n,) the mean advantage of the scored paths through each turn, rescaled to the shrinkage of the first turns."""
    scored = ~np.isnan(leaf_advantages)
    paths = np.where(scored, turns.leaves, 0)
    total, size = np.where(scored, leaf_advantages, 0.0) * paths, np.zeros(len(paths), np.int64)
    for group in groups:
        size[group.members] = len(group.scored)
    for row, parent in reversed(list(enumerate(turns.parent.tolist()))):
        if parent >= 0:
            paths[parent], total[parent] = paths[parent] + paths[row], total[parent] + total[row]
            size[parent] = size[row]
    advantages, first = np.full(len(paths), nan), dict[int, float]()
    for row in np.flatnonzero((paths > 0) & (paths < size)).tolist():
        strength = 1 - paths[row] / size[row]
        reference = first.setdefault(int(turns.tree[row]), strength)
        advantages[row] = total[row] / paths[row] * reference / strength
    return advantages


def _strengths(groups: Sequence[Group], turns: Turns) -> list[float]:
    """Factor of each group's advantages: n/(n − 1), divided by that of the question's first group."""
    first: dict[str, float] = {}
    factors = []
    for group in groups:
        n = len(group.scored)
        factor = n / (n - 1) if n > 1 else 1.0
        question = turns.questions[turns.tree[group.members[0]]]
        factors.append(factor / first.setdefault(question, factor) if n > 1 else 1.0)
    return factors


def _spreads(groups: Sequence[Group], scale: Scale) -> Callable[[Group], float]:
    """The divisor of a group with signal."""
    if scale == "none":
        return lambda _: 1.0
    if scale == "group":
        return lambda group: stdev(group.scored)
    by_turn: dict[int, list[float]] = {}
    for group in groups:
        by_turn.setdefault(group.turn, []).extend(group.scored)
    return lambda group: stdev(by_turn[group.turn])


def subsample(credit: Credit, turns: Turns, limit: int, draw: Random) -> Credit:
    """The credit of at most `limit` turns of each state; the other turns get no signal.

    A few members carry most of the signal of a large group. A member is included with probability proportional to the
    size of its advantage, which is then divided by that probability, so the expected gradient is that of the full group
    (Horvitz and Thompson 1952). Systematic sampling: exactly `limit` turns are kept where more have an advantage.
    """
    sampled = np.full(len(credit.advantages), nan)
    for rows in _members(turns.state.tolist(), range(len(sampled))).values():
        advantages = np.nan_to_num(credit.advantages[rows])
        chances = inclusion_probabilities(np.abs(advantages).tolist(), limit)
        cumulative, threshold = 0.0, draw.random()
        for row, advantage, chance in zip(rows, advantages, chances, strict=True):
            cumulative += chance
            if cumulative > threshold:
                threshold += 1
                sampled[row] = advantage / chance
    return replace(credit, advantages=sampled)


def inclusion_probabilities(sizes: Sequence[float], limit: int) -> list[float]:
    """Probabilities ≤ 1, proportional to sizes ≥ 0, that sum to `limit`; 1 for all sizes > 0 if there are few."""
    if sum(size > 0 for size in sizes) <= limit:
        return [float(size > 0) for size in sizes]
    certain: set[int] = set()
    while True:
        remaining = sum(size for index, size in enumerate(sizes) if index not in certain)
        share = (limit - len(certain)) / remaining
        saturated = {index for index, size in enumerate(sizes) if size * share >= 1 and index not in certain}
        if not saturated:
            return [1.0 if index in certain else size * share for index, size in enumerate(sizes)]
        certain |= saturated
