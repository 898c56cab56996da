"""The service as the process that users start, for the attacks: started, frozen, killed and swapped for another."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from querylect.tests.several import free_port

STOP_SECONDS = 60.0


class Service:
    """`querylect serve` of a config file on one port, through any number of deaths."""

    def __init__(self, config: Path, log: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._config, self._log = config, log
        self._process: subprocess.Popen[str] | None = None

    def start(self, other_config: Path | None = None) -> None:
        """Start it, or that of another config file, and wait until it takes requests.

        RuntimeError with its last lines where it does not.
        """
        config = str(other_config or self._config)
        command = [sys.executable, "-P", "-m", "querylect", "serve", config, f"env.port={self._port}"]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != self.url:
            lines = self._log.read_text(errors="replace").splitlines()[-5:]
            raise RuntimeError("the service did not start:\n" + "\n".join(lines))

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, as by an operator."""
        self.send(signal.SIGTERM)
        assert self._process is not None
        self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def kill_in_flight(self, seconds: float) -> None:
        """kill -9 while a request is on its way: frozen until one waits unread, for at most `seconds`."""
        self.send(signal.SIGSTOP)
        until = time.monotonic() + seconds
        while not unread_bytes(self._port) and time.monotonic() < until:
            time.sleep(0.01)
        self.kill()


def unread_bytes(port: int) -> int:
    """Bytes that have arrived on connections to a local port and were not read (/proc/net/tcp)."""
    total = 0
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, _, state, queues = line.split()[:5]
        if state != "0A" and int(local.rpartition(":")[2], 16) == port:  # 0A listens; its queue counts connections
            total += int(queues.partition(":")[2], 16)
    return total
