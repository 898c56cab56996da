"""Errors are expected by type and by the facts that their message has to name, log records by their module and
arguments; the wording of both is free."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from querylect.errors import QuerylectError

E = TypeVar("E", bound=QuerylectError)


@contextmanager
def refused(error: type[E], *facts: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect `error` with these values, names, paths or figures in its message."""
    with pytest.raises(error) as caught:
        yield caught
    missing = [str(fact) for fact in facts if str(fact) not in str(caught.value)]
    assert not missing, f"the message does not name {missing}: {caught.value}"


def logged(caplog: pytest.LogCaptureFixture, module: str) -> list[tuple[object, ...]]:
    """The arguments of each record of a module, such as `storage` or `train.ahead`, in their order."""
    return [tuple(record.args or ()) for record in caplog.records if record.name == f"querylect.{module}"]
