"""The one place where a test waits by the clock: it polls for an event of another process, thread, port or file."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 300.0
"""Seconds after which a wait is a failure. No test passes or fails by how fast the machine is before that."""


def until(condition: Callable[[], T], what: object = "the event did not come") -> T:
    """Call `condition` until it returns something true, and give that. AssertionError with `what` after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.02)
    return value
