"""Logging of the command line: this package's messages on stderr, other libraries only from warnings up."""

import logging
import os
import sys

_QUIET_LIBRARIES = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "WANDB_SILENT": "true",
}
"""Read by those libraries when they are imported; what the user has set stays."""


class _Format(logging.Formatter):
    """Information as plain text; anything more serious, and debugging, with its level and logger in front."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as text, its traceback included where it has one."""
        text = super().format(record)
        return text if record.levelno == logging.INFO else f"{record.levelname.lower()} ({record.name}): {text}"


def set_up_logging(verbose: bool = False) -> None:
    """Log this package to stderr from INFO up (DEBUG where `verbose`), everything else from WARNING up.

    Call it before heavy libraries are imported: it quiets their progress bars through environment variables, which
    child processes inherit.
    """
    for name, value in _QUIET_LIBRARIES.items():
        os.environ.setdefault(name, value)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Format())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(__package__).setLevel(logging.DEBUG if verbose else logging.INFO)
