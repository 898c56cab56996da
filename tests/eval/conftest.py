"""Fixtures of the files in this folder."""

from ..chat_server import impatient  # noqa: F401
from ..chromium import browser  # noqa: F401
from ..used import trained, trained_run  # noqa: F401
