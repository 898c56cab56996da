"""Commands in this process, and how they end."""

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
