"""The service in a child process, `python -m querylect.envs.server.child DESCRIPTOR PARENT` (client/child_process.py).

It serves what the first line of standard input says, with the token of the second, until standard input ends or the
parent process, given by its id, is gone, and reports its URL, or its error, through the descriptor.
"""

import logging
import os
import select
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from ...configs.schema import EnvironmentConfig
from ...errors import QuerylectError

log = logging.getLogger(__name__)

STOP_SECONDS = 6.0
"""How long the child may take to finish what is under way before it ends at once."""

PARENT_SECONDS = 1.0
"""How often the child looks for its parent."""


def main() -> None:
    """Serve what the first two lines of standard input say, until standard input ends or the parent is gone."""
    report = Connection(int(sys.argv[1]), readable=False)
    settings, token = sys.stdin.buffer.readline(), sys.stdin.buffer.readline().decode().strip()
    if not token:
        return
    threading.Thread(target=_stop_without_parent, args=(int(sys.argv[2]),), daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def send(outcome: str | QuerylectError) -> None:
        with report:
            report.send(outcome)

    from .serve import serve

    try:
        serve(EnvironmentConfig.model_validate_json(settings), token=token, ready=send)
    except QuerylectError as error:
        log.error("%s", error)
        send(error)
        sys.exit(error.exit_code)


def _stop_without_parent(parent: int) -> None:
    """Wait for the parent to close the pipe or to die; then end, gracefully if that can be done in time."""
    while os.getppid() == parent:  # a process that it forked may hold the pipe open
        readable, _, _ = select.select([0], [], [], PARENT_SECONDS)
        if readable and not os.read(0, 4096):
            break
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
