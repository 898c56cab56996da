"""The environment service as a child process that never outlives its parent.

The child is `python -m querylect.envs.client.child_process DESCRIPTOR PARENT`. Standard input brings its configuration
and a token made for it, so that no other user of the machine can ask it. It binds port 0 itself and reports its URL, or
its error, through the descriptor of a pipe. It ends once its parent, given by its id, is gone, and lives in a session
of its own, so that Ctrl-C in a terminal reaches the parent alone.
"""

import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO

from ...configs.schema import EnvironmentConfig
from ...errors import EnvironmentUnavailableError, QuerylectError
from .base import ServiceAddress
from .discovery import PRIVATE

log = logging.getLogger(__name__)

READY_SECONDS = 600.0
"""How long opening the index and the encoder may take."""
STOP_SECONDS = 8.0
"""How long the child may take to finish what is under way before it is killed."""
ORPHAN_STOP_SECONDS = 6.0
"""The same after its parent has ended; then it exits at once."""
PARENT_SECONDS = 1.0
"""How often the child looks for its parent."""
SHOWN_LINES = 20


@contextmanager
def local_service(config: EnvironmentConfig, ready_seconds: float = READY_SECONDS) -> Iterator[ServiceAddress]:
    """Run the service of `config` on a free loopback port while the block runs; gives its URL and token.

    Raises what the service raised while it opened (IndexFolderError, DataError, …), and EnvironmentUnavailableError
    with the child's last lines where it died or was not ready in time.
    """
    child = _Child(config)
    try:
        url = child.wait_ready(ready_seconds)
        log.info("local environment service at %s (process %d)", url, child.process.pid)
        yield ServiceAddress(url, child.token)
    finally:
        child.stop()


class _Child:
    """The child process, its report and the last lines of its output."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self.token = secrets.token_urlsafe(32)
        self._report, report = Pipe(duplex=False)
        settings = config.model_copy(update=PRIVATE).model_dump_json()
        with report:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(report.fileno()), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[report.fileno()],
                start_new_session=True,
            )
        self._lines: deque[str] = deque(maxlen=SHOWN_LINES)
        self._error_reported = False
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read_lines, args=(self.process.stdout,), daemon=True)
        self._reader.start()
        with suppress(BrokenPipeError), self.process.stdin:
            self.process.stdin.write(f"{settings}\n{self.token}\n".encode())

    def wait_ready(self, seconds: float) -> str:
        """The URL, once the service takes requests."""
        with self._report as report:
            if not report.poll(seconds):
                raise self._failed("did not open its index in time")
            try:
                outcome: str | QuerylectError = report.recv()
            except EOFError:
                raise self._failed("ended before it was ready") from None
        if isinstance(outcome, QuerylectError):
            self._error_reported = True
            raise outcome
        return outcome

    def stop(self) -> None:
        """End the child, by SIGTERM and then SIGKILL. It has ended when this returns, also after Ctrl-C meanwhile."""
        exit_code = self.process.poll()
        if exit_code is not None and not self._error_reported:
            output = "\n".join(self._lines)
            log.error("the local environment service had ended by itself (%s):\n%s", _ending(exit_code), output)
        try:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        finally:
            if self.process.poll() is None:
                log.warning("the local environment service did not end in %g s and is killed", STOP_SECONDS)
                self.process.kill()
                self.process.wait()
            self._reader.join(1.0)

    def _read_lines(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                line = raw.decode(errors="replace").rstrip()
                self._lines.append(line)
                log.debug("service: %s", line)

    def _failed(self, event: str) -> EnvironmentUnavailableError:
        self._error_reported = True
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        self._reader.join(0.5)
        last = "\n".join(self._lines) or "(it wrote nothing)"
        exit_code = self.process.poll()
        state = "it still runs and is stopped now" if exit_code is None else _ending(exit_code)
        message = f"the local environment service {event} ({state}). Its last lines:\n{last}"
        return EnvironmentUnavailableError(message)


def _ending(exit_code: int) -> str:
    """How a process ended. Where a signal killed it as it reads a damaged file through mapped memory, what to check."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    by = signal.Signals(-exit_code)
    hint = "; was an index file cut or overwritten while it was read? See querylect index verify"
    return f"exit code {exit_code}, {by.name}{hint if by in (signal.SIGBUS, signal.SIGSEGV) else ''}"


def _serve() -> None:
    """The child: serve what the first line of standard input says, with the token of the second."""
    report = Connection(int(sys.argv[1]), readable=False)
    settings, token = sys.stdin.buffer.readline(), sys.stdin.buffer.readline().decode().strip()
    if not token:
        return
    threading.Thread(target=_stop_without_parent, args=(int(sys.argv[2]),), daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def send(outcome: str | QuerylectError) -> None:
        with report:
            report.send(outcome)

    from ..server.serve import serve

    try:
        serve(EnvironmentConfig.model_validate_json(settings), token=token, ready=send)
    except QuerylectError as error:
        log.error("%s", error)
        send(error)
        sys.exit(error.exit_code)


def _stop_without_parent(parent: int) -> None:
    """Wait until the parent has ended; then end, gracefully if there is time."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    _serve()
