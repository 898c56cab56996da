"""Output on stderr: this package's log, warnings of other libraries, progress bars."""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

Progress = Callable[[int, int], None]
"""Called with how much is done, and the total."""

_QUIET_LIBRARIES = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "WANDB_SILENT": "true",
}
"""Environment variables that those libraries read on import; values that the user has set stay."""

_NO_BARS = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
"""Set too if stderr is no terminal: progress bars would fill a log file."""


class _Format(logging.Formatter):
    """INFO records as plain text; all other levels with level and logger name in front."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno == logging.INFO else f"{record.levelname.lower()} ({record.name}): {text}"


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, above a progress bar; of other libraries only warnings and errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        internal = record.name.partition(".")[0] == __package__
        return (internal or record.levelno >= logging.WARNING) and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr  # not setStream: it flushes the previous stream, which may be closed
        super().emit(record)


def set_up_logging(verbose: bool = False) -> None:
    """Log this package to stderr from INFO up (DEBUG if `verbose`), everything else from WARNING up.

    Call it before heavy libraries are imported: it turns off their progress bars through environment variables, which
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
    logging.getLogger("DeepSpeed").addFilter(_on_stderr)  # its own handler writes to stdout


def _on_stderr(record: logging.LogRecord) -> bool:
    logging.getLogger().handle(record)
    return False


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Yield a function that updates a bar on stderr; nothing is drawn if stderr is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty())
    task = bar.add_task(title, total=None)
    bar.start()
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total)
    finally:
        with suppress(OSError):  # the terminal may be gone
            bar.stop()
