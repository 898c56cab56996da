"""Training: GRPO on trees, credit assignment, packed rows, run folders, trackers.

The package is callable: `querylect.train("demo", ["train.steps=20"])` trains from Python.
"""

import sys
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ..configs.load import load_config
from ..configs.schema import RunConfig
from ..errors import ConfigError
from ..sources import optional_packages

if TYPE_CHECKING:
    from transformers import TrainerCallback


def _train(
    config: str | Path | RunConfig = "demo",
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence["TrainerCallback"] = (),
    resume: bool = False,
    trust: bool = False,
) -> Path:
    """Train a policy against its environment and return the run folder, from which `Rewriter` loads it.

    `config` is a packaged name, a YAML file or settings; `overrides` change what is named. `callbacks` are
    TrainerCallbacks of transformers, such as `on_log(args, state, control, logs=…)`. The log has a line for each step,
    and a terminal a progress bar.

    Raises as `querylect.train.run.train`, and MissingPackageError without the extra `train`.
    """
    if overrides and isinstance(config, RunConfig):
        raise ConfigError(f"overrides {list(overrides)} come with loaded settings; give them to load_config.")
    settings = config if isinstance(config, RunConfig) else load_config(str(config), overrides)
    with optional_packages("train"):
        from .run import train as train_policy

        return train_policy(settings, resume, trust, callbacks)


class _Callable(ModuleType):
    __call__ = staticmethod(_train)


__doc__ = _train.__doc__ or ""
__signature__ = signature(_train)
sys.modules[__name__].__class__ = _Callable
