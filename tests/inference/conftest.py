"""Fixtures of the files in this folder."""

from ..chat_server import impatient  # noqa: F401
from ..used import export, failing, failing_run, rewriter, trained, trained_run  # noqa: F401
