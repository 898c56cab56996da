"""Tokens and keys: in an environment variable, or in the file that the variable with `_FILE` names. A batch system
stores the environment of a job, and a file can be kept from everybody else."""

import os
from pathlib import Path

from ..errors import ConfigError


def token_of(variable: str) -> str:
    """The token in $VARIABLE, else in the file named by $VARIABLE_FILE; empty where neither is set.

    Raises ConfigError where the file cannot be read, or the token is nothing that a header can carry.
    """
    token, file = os.environ.get(variable, ""), os.environ.get(f"{variable}_FILE", "")
    if not token and file:
        try:
            token = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token file {file}, named by {variable}_FILE, cannot be read ({error}).") from error
    if not ((token := token.strip()).isascii() and (token.isprintable())):
        raise ConfigError(f"{variable} holds no token that a header can carry; use printable ASCII, or unset it.")
    return token
