"""Fixtures of the files in this folder. The browser is one for each file: its driver and asyncio exclude each other."""

from ..chromium import browser  # noqa: F401
