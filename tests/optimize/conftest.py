"""Fixtures of the files in this folder."""

from ..chat_server import impatient  # noqa: F401
from .suggestible import prompting, suggestible, world, world_url  # noqa: F401
