"""Fixtures of the files in this folder."""

from ..chat_server import impatient  # noqa: F401
from ..exported import copied, evaluated_run  # noqa: F401
from ..used import trained, trained_run  # noqa: F401
from ..vllm_doubles import vllm  # noqa: F401
