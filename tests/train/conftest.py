"""Fixtures of the tests of training that come with modules of their own."""

import pytest

from ..chat_server import impatient  # noqa: F401
from ..service.test_client import PausesOnly
from ..suggestible import prompting, suggestible, world, world_url  # noqa: F401
from ..vllm_doubles import vllm  # noqa: F401


@pytest.fixture
def own_clock(monkeypatch):
    """The client of a run measures its deadline by its own pauses, which end at once."""
    monkeypatch.setattr("querylect.envs.client.client.RetryClock", lambda: PausesOnly().clock)
