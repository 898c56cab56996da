"""The training-free baselines of a plan: the weights of each cell, and the best baseline per environment.

A cell stores its weights beside its answers (`weights.json`), so that a later evaluation with more questions uses the
same ones. Tuning results are stored by environment in the evaluation's `tuning.json`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...configs.evaluation import PlanConfig
from ...data.types import Question
from ...envs.client.base import EnvironmentApi
from ...errors import DataError
from ..identity import digest
from ..records import write_text
from ..training_free import GRIDS, TUNING_FILE, Tuned, Tuning, best_by_validation, tune

_WEIGHTS_FILE = "weights.json"


@dataclass(frozen=True, slots=True)
class FreeSystem:
    """A training-free baseline as a system of a plan."""

    name: str
    """The system's name."""
    baseline: str
    weights: Mapping[str, float] | None
    """The weights given in the plan; None means tuned weights."""
    tuning: Tuning

    @classmethod
    def of(cls, plan: PlanConfig, name: str) -> "FreeSystem":
        """The system of that name, which must be a training-free one."""
        system = plan.systems[name]
        assert system.training_free is not None, f"{name} has a model"
        tuning = Tuning(plan.split, plan.tuning_questions, plan.metrics, plan.seed, plan.depth)
        return cls(name, system.training_free, system.weights, tuning)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything about the system that its answers depend on."""
        if self.weights is not None:
            return {"training_free": self.baseline, "weights": dict(self.weights)}
        chosen = [self.tuning.questions, self.tuning.metrics[0], self.tuning.seed]
        return {
            "training_free": self.baseline,
            "grid": digest([dict(weights) for weights in GRIDS[self.baseline]]),
            "by": chosen,
        }

    def choose(self, client: EnvironmentApi, evaluated: Sequence[Question], cell: Path, evaluation: Path) -> Tuned:
        """The weights of a cell: those stored earlier, else those of the plan, else the best on validation questions.

        `evaluated` are all questions of the evaluated split. Raises the errors of `training_free.tune`.
        """
        tuned = self.chosen(cell)
        if tuned is None:
            if self.weights is not None:
                tuned = Tuned(self.baseline, dict(self.weights), reason="given in the plan")
            else:
                (tuned,) = tune([self.baseline], client, evaluated, self.tuning, evaluation / TUNING_FILE)
            write_text(cell / _WEIGHTS_FILE, json.dumps(asdict(tuned), indent=1) + "\n")
        return tuned

    def chosen(self, cell: Path) -> Tuned | None:
        """The stored weights of a cell; None if it has none yet. Raises DataError if they cannot be read."""
        path = cell / _WEIGHTS_FILE
        if not path.is_file():
            return None
        try:
            return Tuned(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{path} cannot be read ({error}). Remove the folder {cell} and evaluate again.") from error


def best_of(candidates: Mapping[str, Tuned], values: Mapping[str, Sequence[float | None]]) -> tuple[str, bool]:
    """The system with the best training-free baseline, and whether it was chosen on validation questions.

    `candidates` maps systems to their weights. If none was tuned, the best on the evaluated questions (`values`: their
    scores by system) is taken, which is in its favour.
    """
    best = best_by_validation(list(candidates.values()))
    if best is not None:
        return next(name for name, tuned in candidates.items() if tuned is best), True
    scored = {name: [score for score in values[name] if score is not None] for name in candidates}
    means = {name: math.fsum(scores) / len(scores) if scores else -1.0 for name, scores in scored.items()}
    return max(means, key=means.__getitem__), False
