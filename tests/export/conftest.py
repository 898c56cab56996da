"""Fixtures of the files in this folder."""

from ..exported import copied, evaluated_run  # noqa: F401
from ..used import trained_run  # noqa: F401
