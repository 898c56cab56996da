"""Names that a user chooses. They become folders, files, job names and parts of commands, so they contain no character
with a meaning to paths or shells."""

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
    """A Name like `text`: characters that a name cannot have become hyphens."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip(".-") or "run"


Name = Annotated[str, AfterValidator(_check_name)]
"""Name of a run, an evaluation or a paper, or of one of their environments, datasets, tasks or systems."""
VariableName = Annotated[str, AfterValidator(_check_variable)]
"""Name of an environment variable; a shell could run code in any other text."""
