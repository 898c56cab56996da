"""Fixtures of the files in this folder. Those of the session are made once for all files of a process."""

from ..chat_server import impatient  # noqa: F401
from ..exported import copied, evaluated_run  # noqa: F401
from ..service.test_cli import replace_function  # noqa: F401
from ..suggestible import suggestible, world, world_url  # noqa: F401
from ..used import export, failing, failing_run, rewriter, trained, trained_run  # noqa: F401
