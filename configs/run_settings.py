"""The config of a run folder, to evaluate, export or use it."""

from collections.abc import Sequence
from pathlib import Path

from .load import load_config, read_yaml
from .schema import RunConfig
from .trust import is_own, refuse_code


def load_run_config(run: Path | str, overrides: Sequence[str] = (), *, trust: bool = False) -> RunConfig:
    """`load_config` of a run folder. Without `trust`, ConfigError too for one of another user that runs code."""
    path = Path(run) / "config.yaml"
    if not trust and not is_own(path):
        refuse_code(str(run), read_yaml(path), overrides)
    return load_config(str(path), overrides)
