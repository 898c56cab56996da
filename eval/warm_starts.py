"""A row for the policy before GRPO, in evaluations of specs: without it a table leaves open what GRPO adds."""

from pathlib import Path

from ..configs.evaluation import SpecConfig, SystemConfig
from ..rollouts.checkpoints import WARM_START_FOLDER, has_warm_start
from .records import UNTRAINED

_SUFFIX = "-warm-start"


def with_warm_starts(spec: SpecConfig) -> SpecConfig:
    """The spec with a system NAME-warm-start before each trained system NAME whose run had a warm start.

    It has the settings of NAME. It is not added where `run_baselines` leaves it out, or the spec has a system of that
    name, or one with these settings.
    """
    if "warm_start" not in spec.run_baselines:
        return spec
    systems: dict[str, SystemConfig] = {}
    for name, system in spec.systems.items():
        if _trained_by_grpo(system) and has_warm_start(Path(system.run or "").expanduser()):
            before = system.model_copy(update={"checkpoint": WARM_START_FOLDER})
            if name + _SUFFIX not in spec.systems and before not in [*spec.systems.values(), *systems.values()]:
                systems[name + _SUFFIX] = before
        systems[name] = system
    return spec.model_copy(update={"systems": systems})


def is_warm_start(system: SystemConfig) -> bool:
    """Whether a system is the policy of its run before GRPO."""
    return system.checkpoint == WARM_START_FOLDER


def system_label(name: str, system: SystemConfig) -> str:
    """The display name of a system of a spec, without its turn."""
    added = is_warm_start(system) and name.endswith(_SUFFIX)
    return f"{name.removesuffix(_SUFFIX)}, warm start" if added else name


def _trained_by_grpo(system: SystemConfig) -> bool:
    return system.run is not None and system.checkpoint != UNTRAINED and not is_warm_start(system)
