"""Fixtures of the files in this folder."""

from ..chromium import browser  # noqa: F401
