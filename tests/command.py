"""Commands in this process, how they end, and programs that stand in for others."""

from pathlib import Path

import pytest
from querylect import errors
from querylect.cli import main


def end(*arguments: object) -> int:
    """The exit code of one command."""
    with pytest.raises(SystemExit) as caught:
        main(list(map(str, arguments)))
    return caught.value.code or 0


def mistake(*arguments: object) -> type[errors.UserError]:
    """The class of the error of ours that ends one command with 2."""
    with pytest.raises(SystemExit) as caught:
        main(list(map(str, arguments)))
    assert caught.value.code == 2
    assert isinstance(caught.value.__context__, errors.UserError)
    return type(caught.value.__context__)


def programs(folder: Path, **scripts: str) -> Path:
    """The folder with shell scripts as executable files of these names, each after its own #! line or that of bash."""
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (folder / name).write_text(script if script.startswith("#!") else f"#!/usr/bin/env bash\n{script}\n")
        (folder / name).chmod(0o755)
    return folder
