"""Metrics of a training step: one flat record per step, with per-turn values where they apply."""

import re
from collections.abc import Mapping
from statistics import fmean, pstdev

import numpy as np
from numpy.typing import NDArray

from ..data.types import split_id
from .credit import Credit
from .turns import Floats, Turns

FINAL_REWARD = "final_reward"
"""The mean reward at the end of a path. Where a turn stopped, that of the last turn is only of paths that went on."""
_MEANS = (
    *("reward", "format", "truncated", "think_tokens", "rewrite_tokens", "completion_tokens", "failed_search", "copy"),
    *("refused", "no_hits"),  # of native queries
)
"""Figures of `Turns` whose mean over a turn is a metric."""


def step_metrics(turns: Turns, credit: Credit, trees: NDArray[np.bool_] | None = None) -> dict[str, float]:
    """Means over the nodes of each turn; failed searches, and turns below them, are counted and in no mean.

    `zero_variance` is a share of groups, `signal` a share of nodes; `states` is the number of distinct states per
    question. `stopped`, `final_reward` and `searches_per_path` are there where a turn stopped; the last also where
    searches cost. `trees`: those that count; None for all.
    """
    chosen = np.ones(len(turns.questions), bool) if trees is None else trees
    rows, signal = chosen[turns.tree], credit.has_signal
    record: dict[str, float] = {}
    for turn in range(1, int(turns.turn[rows].max(initial=0)) + 1):
        in_turn = rows & (turns.turn == turn)

        def put(name: str, values: Floats, turn: int = turn) -> None:
            values = values[~np.isnan(values)]
            if len(values):
                record[f"{name}/turn{turn}"] = fmean(values)

        for name in _MEANS:
            put(name, turns.figure(name)[in_turn])
        rewards = turns.figure("reward")[in_turn & turns.scored]
        put("reward_min", rewards[rewards == rewards.min(initial=1.0)][:1])
        put("reward_max", rewards[rewards == rewards.max(initial=0.0)][:1])
        for name, values in metric_values(turns, in_turn).items():
            put(name, values)
        if turns.figure("stopped")[in_turn].any():
            put("stopped", turns.figure("stopped")[in_turn])
        surprise = turns.figure("surprise")[in_turn]
        if sampled := turns.tokens[in_turn][~np.isnan(surprise)].sum():
            record[f"entropy/turn{turn}"] = float(np.nansum(surprise) / sampled)
        groups = [group for group in credit.groups if group.turn == turn and rows[group.members].all()]
        put("zero_variance", np.array([not group.has_signal for group in groups], float))
        put("best_of_group", np.array([max(group.scored) for group in groups if group.scored]))
        put("signal", signal[in_turn].astype(float))
        record[f"states/turn{turn}"] = len(np.unique(turns.state[in_turn])) / chosen.sum()
        record[f"advantage_spread/turn{turn}"] = pstdev(np.nan_to_num(credit.advantages[in_turn]).tolist())
    return record | _path_metrics(turns, rows)


def mix_metrics(turns: Turns, credit: Credit) -> dict[str, float]:
    """Metrics of a step for each environment of a mix, as `reward/turn2/NAME`, and its number of questions."""
    record: dict[str, float] = {}
    for name, trees in by_environment(turns).items():
        record |= {f"{key}/{name}": value for key, value in step_metrics(turns, credit, trees).items()}
        record[f"questions/{name}"] = int(trees.sum())
    return record


def by_environment(turns: Turns) -> dict[str, NDArray[np.bool_]]:
    """Which trees are of each environment of a mix, whose name is in the ids of their questions."""
    names = [split_id(question)[0] for question in turns.questions]
    return {name: np.array([environment == name for environment in names]) for name in dict.fromkeys(names)}


def metric_values(turns: Turns, rows: NDArray[np.bool_]) -> dict[str, Floats]:
    """Each metric of the scored turns among `rows`, by name without its rank; 0 for a turn without one that others
    have."""
    scored = rows & turns.scored
    measured = {name: turns.figures[name][scored] for name in sorted(turns.figures) if name.startswith("metric/")}
    return {
        name.removeprefix("metric/").split("@")[0]: np.nan_to_num(values)
        for name, values in measured.items()
        if not np.isnan(values).all()
    }


def _path_metrics(turns: Turns, rows: NDArray[np.bool_]) -> dict[str, float]:
    """Means over the scored paths, if a turn stopped or searches cost: each stop counts as the paths that it ends."""
    ends = rows & turns.ends & turns.scored
    stopped = bool(turns.figure("stopped")[rows].any())
    record: dict[str, float] = {}
    if ends.any() and (stopped or turns.figure("cost")[rows].any()):
        searches = turns.along_paths(turns.figure("searched"))
        record["searches_per_path"] = fmean(searches[ends], turns.leaves[ends])
    if ends.any() and stopped:
        record[FINAL_REWARD] = fmean(turns.figure("reward")[ends], turns.leaves[ends])
    return record


def turns_of(record: Mapping[str, object], name: str) -> list[tuple[int, str]]:
    """(turn, key) of a per-turn metric, ordered by turn; keys of a single environment of a mix are excluded."""
    matches = (re.fullmatch(rf"{re.escape(name)}/turn(\d+)", key) for key in record)
    return sorted((int(match[1]), match[0]) for match in matches if match)
