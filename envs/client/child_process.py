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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from ...configs.schema import EnvironmentConfig
from ...errors import EnvironmentUnavailableError, QuerylectError
from .base import ServiceAddress

log = logging.getLogger(__name__)

PRIVATE = {"host": "127.0.0.1", "port": 0}
"""Settings of a run's own service, whatever the config says."""
STOP_SECONDS = 8.0
"""How long the child may take to finish what is under way before it is killed."""


@contextmanager
def local_service(config: EnvironmentConfig) -> Iterator[ServiceAddress]:
    """Run the service of `config` on a free loopback port while the block runs; gives its URL and token.

    Raises what the service raised while it opened (IndexFolderError, DataError, …), and EnvironmentUnavailableError
    where it died.
    """
    token = secrets.token_urlsafe(32)
    reports, report = Pipe(duplex=False)
    with report:
        command = [sys.executable, "-P", "-m", __name__, str(report.fileno()), str(os.getpid())]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=2, pass_fds=[report.fileno()], start_new_session=True
        )
    try:
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin:
            child.stdin.write(f"{config.model_copy(update=PRIVATE).model_dump_json()}\n{token}\n".encode())
        with reports:
            try:
                outcome: str | QuerylectError = reports.recv()
            except EOFError:
                code = child.wait()
                message = f"the local environment service ended before it was ready (exit code {code}); see its output."
                raise EnvironmentUnavailableError(message) from None
        if isinstance(outcome, QuerylectError):
            raise outcome
        log.info("local environment service at %s (process %d)", outcome, child.pid)
        yield ServiceAddress(outcome, token)
        if child.poll() is not None:
            log.error("the local environment service had ended by itself (exit code %d)", child.returncode)
    finally:
        try:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_SECONDS)
        finally:  # also after Ctrl-C meanwhile
            child.kill()
            child.wait()


def _serve() -> None:
    """The child: serve what the first line of standard input says, with the token of the second."""
    report = Connection(int(sys.argv[1]), readable=False)
    settings, token = sys.stdin.buffer.readline(), sys.stdin.buffer.readline().decode().strip()
    if not token:
        return
    from ..server.serve import serve

    threading.Thread(target=_end_with, args=[int(sys.argv[2])], daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def send(outcome: str | QuerylectError) -> None:
        with report:
            report.send(outcome)

    try:
        serve(EnvironmentConfig.model_validate_json(settings), token=token, ready=send)
    except QuerylectError as error:
        send(error)
        sys.exit(error.exit_code)


def _end_with(parent: int) -> None:
    """End this process, gracefully if there is time, as soon as its parent of that id is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    _serve()
