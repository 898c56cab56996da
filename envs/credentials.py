"""The bearer token of a service: in an environment variable, or in the file that another one names. A batch system
stores the environment of a job, and a file can be kept from everybody else."""

import os
from pathlib import Path

from ..errors import ConfigError

TOKEN = "QUERYLECT_TOKEN"


def service_token() -> str:
    """The token in $QUERYLECT_TOKEN, else in the file named by $QUERYLECT_TOKEN_FILE; empty where neither is set.

    Raises ConfigError where it is nothing that a header can carry, OSError where the file cannot be read.
    """
    token, file = secret_in(TOKEN), os.environ.get(f"{TOKEN}_FILE", "")
    return token if token or not file else _usable(Path(file).read_text(encoding="utf-8"), f"{TOKEN}_FILE")


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
