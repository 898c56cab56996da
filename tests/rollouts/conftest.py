"""Fixtures of the files in this folder."""

from ..used import rewriter, trained_run  # noqa: F401
from ..vllm_doubles import vllm  # noqa: F401
