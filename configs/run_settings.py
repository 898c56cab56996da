"""The config of a run folder, which may be another user's: its settings are data unless they run code."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .load import load_config, read_yaml
from .schema import RunConfig


def load_run_config(run: Path | str, overrides: Sequence[str] = (), *, trust: bool = False) -> RunConfig:
    """`load_config` of a run folder. Without `trust`, ConfigError too for one of another user that runs code."""
    path = Path(run) / "config.yaml"
    if not trust and not is_own(path):
        refuse_code(str(run), read_yaml(path), overrides)
    return load_config(str(path), overrides)


def is_own(path: Path) -> bool:
    """Whether a file or folder belongs to the user of this process."""
    return path.stat().st_uid == os.getuid()


def refuse_code(name: str, values: Any, overrides: Sequence[str] = ()) -> None:
    """Raise ConfigError where settings of somebody else's folder run code and the user did not set them here."""
    overridden = {override.partition("=")[0].strip() for override in overrides}
    code = [f"{key}={value}" for key, value in _code_in(values) if key not in overridden]
    if code:
        raise ConfigError(
            f"{name} is not yours, and its settings run code: {'; '.join(code)}. Set these yourself (key=value), or, "
            "if you trust its author, use them with --trust (trust=True in Python)."
        )


def _code_in(values: Any, key: str = "") -> Iterator[tuple[str, object]]:
    """The settings that run code, with their dotted names: `trust_remote_code`, and `python:FILE`."""
    inner = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list) else ()
    for name, value in inner:
        yield from _code_in(value, f"{key}.{name}" if key else str(name))
    if str(values).startswith("python:") or (key.rpartition(".")[2] == "trust_remote_code" and values):
        yield key, values
