"""The training-free baselines of a plan: which weights a cell took, and which baseline is the best of an environment.

A cell keeps its weights beside its answers (`weights.json`), so that a later evaluation that asks further questions
takes the same. Choices are kept by environment in `tuning.json` of the evaluation.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...configs.evaluation import PlanConfig
from ...data.types import Question
from ...errors import DataError
from ..identity import digest
from ..records import write_text
from ..training_free import GRIDS, TUNING_FILE, Tuned, Tuning, best_by_validation, tune

_WEIGHTS = "weights.json"


@dataclass(frozen=True, slots=True)
class FreeSystem:
    """A training-free baseline as a system of a plan."""

    name: str
    """Of the system."""
    baseline: str
    weights: Mapping[str, float] | None
    """Those that the plan gives; None chooses them."""
    tuning: Tuning

    @classmethod
    def of(cls, plan: PlanConfig, name: str) -> "FreeSystem":
        """The system of that name, which is a training-free one."""
        system = plan.systems[name]
        assert system.training_free is not None, f"{name} has a model"
        tuning = Tuning(plan.split, plan.tuning_questions, plan.metrics, plan.seed, plan.depth)
        return cls(name, system.training_free, system.weights, tuning)

    @property
    def identity(self) -> dict[str, Any]:
        """All of it that its answers depend on."""
        if self.weights is not None:
            return {"training_free": self.baseline, "weights": dict(self.weights)}
        chosen = [self.tuning.questions, self.tuning.metrics[0], self.tuning.seed]
        return {
            "training_free": self.baseline,
            "grid": digest([dict(each) for each in GRIDS[self.baseline]]),
            "by": chosen,
        }

    def choose(self, client: Any, evaluated: Sequence[Question], cell: Path, evaluation: Path) -> Tuned:
        """The weights of a cell: those that it took before, those that the plan gives, or the best on validation.

        `evaluated` are all questions of the evaluated split. Raises as `training_free.tune`.
        """
        known = self.chosen(cell)
        if known is None:
            if self.weights is not None:
                known = Tuned(self.baseline, dict(self.weights), reason="given in the plan")
            else:
                (known,) = tune([self.baseline], client, evaluated, self.tuning, evaluation / TUNING_FILE)
            write_text(cell / _WEIGHTS, json.dumps(asdict(known), indent=1) + "\n")
        return known

    def chosen(self, cell: Path) -> Tuned | None:
        """The weights that a cell took; None where it has none yet. Raises DataError where they cannot be read."""
        path = cell / _WEIGHTS
        if not path.is_file():
            return None
        try:
            return Tuned(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{path} cannot be read ({error}). Remove the folder {cell} and evaluate again.") from error


def best_of(found: Mapping[str, Tuned], values: Mapping[str, Sequence[float | None]]) -> tuple[str, bool]:
    """The system with the best training-free baseline, and whether that was chosen on validation questions.

    `found` is by system. Where none was tuned, the best on the evaluated questions (`values`, their scores) is taken,
    which is in its favour.
    """
    best = best_by_validation(list(found.values()))
    if best is not None:
        return next(name for name, tuned in found.items() if tuned is best), True
    scored = {name: [score for score in values[name] if score is not None] for name in found}
    means = {name: math.fsum(scores) / len(scores) if scores else -1.0 for name, scores in scored.items()}
    return max(means, key=means.__getitem__), False
