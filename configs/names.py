"""Names that a user chooses: they become folders, files, job names and parts of commands, and so hold nothing that a
path or a shell reads in another way."""

import re
from typing import Annotated

from pydantic import AfterValidator

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the name {name!r} must be of letters (A to Z), digits, '.', '-' and '_', and must not begin with '.' or "
            "'-': it names folders, files and jobs"
        )
    return name


def _check_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name of an environment variable; expected letters (A to Z), digits and '_', and no digit "
            "first, such as QUERYLECT_TOKEN"
        )
    return name


def as_name(text: str) -> str:
    """A Name like `text`: what no name holds becomes a hyphen."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip(".-") or "run"


Name = Annotated[str, AfterValidator(_check_name)]
"""Of a run, an evaluation, a paper, and of their environments, datasets, tasks and systems."""
VariableName = Annotated[str, AfterValidator(_check_variable)]
"""Of an environment variable: a shell would run code that stands in another text."""
