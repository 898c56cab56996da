"""The bearer token of a service: in an environment variable, or in a file that the variable with `_FILE` names.

A file is the better place on machines of many users: a batch system stores the environment of a job, and a file can be
kept from everybody else. One that others may read is refused.
"""

import os
import stat
from pathlib import Path

from ..errors import ConfigError


def token_of(variable: str) -> str:
    """The token in $VARIABLE, else in the file named by $VARIABLE_FILE; empty where neither is set.

    Raises ConfigError where the file cannot be read, is empty or is readable by others, or where the token is nothing
    that a header can carry.
    """
    token = secret_in(variable)
    if not token and (file := os.environ.get(f"{variable}_FILE", "")):
        return _read(Path(file), f"{variable}_FILE")
    return token


def secret_in(variable: str) -> str:
    """The token or key in $VARIABLE without white space around it; empty where it is not set.

    Raises ConfigError where it is white space alone, or nothing that a header can carry.
    """
    text = os.environ.get(variable, "")
    if text and not text.strip():
        message = f"{variable} holds white space and no token; set it to the token, or unset it."
        raise ConfigError(message)
    return _usable(text, variable)


def _usable(token: str, source: str) -> str:
    token = token.strip()
    if token and not (token.isascii() and token.isprintable()):
        message = f"the token in {source} holds characters that no header can carry; use printable ASCII."
        raise ConfigError(message)
    return token


def _read(path: Path, variable: str) -> str:
    try:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            message = f"others may read the token file {path} (mode {mode & 0o777:o}): chmod 600 {path}."
            raise ConfigError(message)
        token = _usable(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"the token file {path}, named by {variable}, cannot be read ({reason}). Name one that holds the token of "
            f"the service and is yours, or unset {variable}."
        ) from error
    if not token:
        message = f"the token file {path}, named by {variable}, is empty; write the service's token into it."
        raise ConfigError(message)
    return token
