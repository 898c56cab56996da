"""Fixtures of the files in this folder."""

from ..chat_server import impatient  # noqa: F401
