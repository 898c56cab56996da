"""Which folders may run code without the user's flag: those that this user owns.

A run or an export of another user, or from the Hub, is data: its settings are used, unless they run code.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError

FLAG = "--trust (trust=True in Python)"


def is_own(folder: Path) -> bool:
    """Whether a folder belongs to the user of this process."""
    return folder.stat().st_uid == os.getuid()


def code_in(values: Any, key: str = "") -> Iterator[tuple[str, object]]:
    """The settings in plain data that run code, with their dotted names: `trust_remote_code`, and `python:FILE`."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from code_in(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for position, value in enumerate(values):
            yield from code_in(value, f"{key}.{position}")
    elif (isinstance(values, str) and values.startswith("python:")) or (
        key.rpartition(".")[2] == "trust_remote_code" and values
    ):
        yield key, values


def refuse_code(name: str, values: Any, overrides: Sequence[str] = ()) -> None:
    """Raise ConfigError where the settings of somebody else's folder run code and the user did not set them here."""
    overridden = {override.partition("=")[0].strip() for override in overrides}
    code = [f"{key}={value}" for key, value in code_in(values) if key not in overridden]
    if code:
        raise ConfigError(
            f"{name} is not yours, and its settings run code: {'; '.join(code)}. Set these yourself (key=value), or, "
            f"if you trust its author, use them with {FLAG}."
        )
