"""The bearer token of a service: in an environment variable, or in the file that the variable with `_FILE` names. A
batch system stores the environment of a job, and a file can be kept from everybody else."""

import os
from pathlib import Path

from ..errors import ConfigError


def token_of(variable: str) -> str:
    """The token in $VARIABLE, else in the file named by $VARIABLE_FILE; empty where neither is set.

    Raises ConfigError where the file cannot be read, or the token is nothing that a header can carry.
    """
    token, file = secret_in(variable), os.environ.get(f"{variable}_FILE", "")
    if token or not file:
        return token
    try:
        return _usable(Path(file).read_text(encoding="utf-8"), f"{variable}_FILE")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {file}, named by {variable}_FILE, cannot be read ({error}).") from error


def secret_in(variable: str) -> str:
    """The token or key in $VARIABLE without white space around it; empty where it is not set.

    Raises ConfigError where it is nothing that a header can carry.
    """
    text = os.environ.get(variable)
    return _usable(text, variable) if text else ""


def _usable(text: str, source: str) -> str:
    token = text.strip()
    if not (token and token.isascii() and token.isprintable()):
        raise ConfigError(f"{source} holds no token that a header can carry; use printable ASCII, or unset it.")
    return token
