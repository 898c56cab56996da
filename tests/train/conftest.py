"""Fixtures of the tests of training that come with modules of their own."""

from ..chat_server import impatient  # noqa: F401
from ..suggestible import prompting, suggestible, world, world_url  # noqa: F401
from ..vllm_doubles import vllm  # noqa: F401
