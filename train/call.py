"""`querylect.train(…)`: training from Python, as `querylect train` does it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..configs.load import load_config
from ..configs.schema import RunConfig
from ..errors import ConfigError
from ..sources import optional_packages

if TYPE_CHECKING:
    from transformers import TrainerCallback


def train(
    config: str | Path | RunConfig = "demo",
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence["TrainerCallback"] = (),
    resume: bool = False,
    trust: bool = False,
) -> Path:
    """Train a policy against its environment and return the run folder, from which `Rewriter` loads it.

    `config` is a packaged name, a YAML file or settings; `overrides` change it, as on the command line. The log has
    a line for each step, and a terminal a progress bar.
    `callbacks` are TrainerCallbacks of transformers, such as `on_log(args, state, control, logs=…)`.

    Raises as `querylect.train.run.train`; ConfigError for overrides of settings that are loaded already, and
    MissingPackageError without the extra `train`.
    """
    if isinstance(config, RunConfig):
        if overrides:
            raise ConfigError(
                f"overrides {list(overrides)} come with settings that are loaded already; give them to load_config."
            )
        settings = config
    else:
        settings = load_config(str(config), overrides)
    with optional_packages("train"):
        from .run import train as train_policy

        return train_policy(settings, resume, trust, callbacks)
