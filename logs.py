"""What the command line shows on stderr: this package's log, other libraries' warnings, progress bars."""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_QUIET_LIBRARIES = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "WANDB_SILENT": "true",
}
"""Read by those libraries when they are imported; what the user has set stays."""

_NO_BARS = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
"""Where stderr is no terminal: downloads and conversions would fill a log file with their bars."""


class _Format(logging.Formatter):
    """Information as plain text; anything more serious, and debugging, with its level and logger in front."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as text, its traceback included where it has one."""
        text = super().format(record)
        return text if record.levelno == logging.INFO else f"{record.levelname.lower()} ({record.name}): {text}"


class _Stderr(logging.StreamHandler):
    """Writes to what stderr is at that moment, so that records go above a progress bar and not through it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out what other libraries say below WARNING, also where they set a level of their own."""
        ours = record.name.partition(".")[0] == __package__
        return (ours or record.levelno >= logging.WARNING) and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self.stream = sys.stderr  # not setStream, which flushes the one before: it may be closed
        super().emit(record)


def _on_stderr(record: logging.LogRecord) -> bool:
    """As a logger's filter: what it would have written elsewhere goes where all else goes."""
    logging.getLogger().handle(record)
    return False


def set_up_logging(verbose: bool = False) -> None:
    """Log this package to stderr from INFO up (DEBUG where `verbose`), everything else from WARNING up.

    Call it before heavy libraries are imported: it quiets their progress bars through environment variables, which
    child processes inherit.
    """
    quiet = _QUIET_LIBRARIES if sys.stderr.isatty() else _QUIET_LIBRARIES | _NO_BARS
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", module=r"(transformers|peft|trl|accelerate)\.")
    handler = _Stderr()
    handler.setFormatter(_Format())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(__package__).setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger("DeepSpeed").addFilter(_on_stderr)  # it has a handler of its own that writes to stdout


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function of (done, total) that moves a bar on stderr; nothing is drawn where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
