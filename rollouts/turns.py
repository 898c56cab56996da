"""Which turn of a trained policy is used: the one that won on validation.

Every validation record of a run holds `turn`, the winner of its step: `best/best.json` is the record of `best/`, and
validation.jsonl has those of `final/` and of the numbered checkpoints. Where a checkpoint was never validated, its last
turn is used, and the reason says so.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..configs.schema import RewardConfig, RolloutConfig, TrainConfig
from ..storage import json_object, logged_objects

ValidationRecord = Mapping[str, float | None]
"""A record of validation.jsonl: the step, its means by name and turn, and `turn`, the winner (None without means)."""


@dataclass(frozen=True, slots=True)
class UsedTurn:
    """The turn whose rewrite is the answer."""

    turn: int
    """1 for the first."""
    reason: str
    """Why this one, in a few words."""


def used_turn(
    rollout: RolloutConfig, reward: RewardConfig, train: TrainConfig, run: Path | None, checkpoint: Path | None
) -> UsedTurn:
    """The turn of a checkpoint of a run folder; the first one for a policy of no run (None), which searches nothing."""
    turns, metric = len(rollout.branching), reward.objective
    if turns == 1:
        return UsedTurn(1, "it has one turn")
    if run is None or checkpoint is None:
        return UsedTurn(1, "of no run, so the first turn")
    record = _validation_record(train, run, checkpoint)
    winner = record and winning_turn(record, metric, turns)
    if not record or not winner:
        return UsedTurn(turns, f"{checkpoint.name} was not validated, so the last turn")
    scores = ", ".join(f"turn {turn} {value:.3f}" for turn, value in _means(record, metric, turns).items())
    return UsedTurn(winner, f"best on {record.get('questions', '?')} validation questions: {metric} of {scores}")


def winning_turn(record: ValidationRecord, metric: str, turns: int) -> int | None:
    """The turn with the highest mean of `metric` in a validation record, the earlier one of equals; None without any.

    A later turn costs a search and another answer, so it has to be better.
    """
    means = _means(record, metric, turns)
    return max(means, key=lambda turn: (means[turn], -turn)) if means else None


def best_value(record: ValidationRecord, metric: str, turns: int) -> float:
    """The mean of `metric` at the turn that won. KeyError where the record has none."""
    return _means(record, metric, turns)[winning_turn(record, metric, turns) or turns]


def _means(record: ValidationRecord, metric: str, turns: int) -> dict[int, float]:
    """The mean of `metric` at each turn that has one."""
    values = ((turn, record.get(metric_key(metric, turn))) for turn in range(1, turns + 1))
    return {turn: value for turn, value in values if value is not None}


def metric_key(metric: str, turn: int) -> str:
    """The entry of a validation record that holds a metric at a turn."""
    return f"{metric.partition('@')[0]}/turn{turn}"


def best_record(run: Path) -> ValidationRecord | None:
    """The validation record of the policy in best/ of a run folder; None where there is none."""
    return json_object(run / "best" / "best.json")


def _validation_record(train: TrainConfig, run: Path, checkpoint: Path) -> ValidationRecord | None:
    """The validation record of these weights; None where there is none."""
    if checkpoint.name == "best":
        return best_record(checkpoint.parent)
    records = _records(run / "validation.jsonl")
    if checkpoint.name == "final":
        last, finished = max(records, default=-1), max(_records(run / "metrics.jsonl"), default=train.steps)
        return records[last] if last >= finished else None
    step = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return records.get(int(step[1])) if step else None


def _records(path: Path) -> dict[int, ValidationRecord]:
    """The records of a log by their steps; a line that was cut is left out."""
    return {record["step"]: record for record in logged_objects(path) if isinstance(record.get("step"), int)}
