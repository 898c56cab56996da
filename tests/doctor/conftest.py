"""Fixtures of the files in this folder."""

from ..vllm_doubles import vllm  # noqa: F401
