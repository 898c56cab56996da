"""What of a sweep a cluster has to do (slurm/array.py)."""

from ..errors import ConfigError
from ..slurm.array import ArrayRun, SweepArrays
from .runs import SweepPlan


def arrays_of(plan: SweepPlan, evaluate: bool, at_once: int | None) -> SweepArrays:
    """The runs that are not finished. Raises ConfigError if all of them are."""
    training = [ArrayRun(run.config, run.config_file) for run in plan.runs if not run.is_trained]
    trained = [run.folder for run in plan.runs if evaluate and run.is_trained and not run.is_evaluated]
    if not (training or trained):
        raise ConfigError(
            f"all {len(plan.runs)} runs of {plan.folder} are finished; --table instead of --slurm writes their table."
        )
    return SweepArrays(plan.name, plan.folder, training, trained, evaluate, at_once)
