"""A service and a training run as the processes that users start, for soak.py: started, killed, stopped and read."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

READY_SECONDS = 120.0
END_SECONDS = 120.0


class Service:
    """`querylect serve` of one config file on one port, through any number of deaths."""

    def __init__(self, config: Path, port: int, token: str, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.starts = 0
        self.log = log
        self._config, self._port, self._token = config, port, token
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it takes requests. RuntimeError with its last lines where it does not."""
        command = [sys.executable, "-m", "querylect", "serve", str(self._config), f"env.port={self._port}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=with_token(self._token)
            )
        self.starts += 1
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != self.url:
            lines = self.log.read_text(errors="replace").splitlines()[-5:]
            raise RuntimeError("the service did not start:\n" + "\n".join(lines))

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.poll() is None

    def resident(self) -> int:
        """Bytes of memory that it holds."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def connections(self) -> int:
        """Open connections to it."""
        found = psutil.Process(self.pid).net_connections("tcp")
        return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)

    def kill_in_flight(self, seconds: float) -> bool:
        """kill -9 while a request is on its way: frozen until one waits unread, then killed. Whether one did."""
        os.kill(self.pid, signal.SIGSTOP)
        until, waiting = time.monotonic() + seconds, False
        while not waiting and time.monotonic() < until:
            waiting = unread_bytes(self._port) > 0
            time.sleep(0.01)
        self.kill()
        return waiting

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def mark(self) -> int:
        """Where its log ends now."""
        return self.log.stat().st_size

    def statuses(self, since: int, path: str | None = None) -> Counter:
        """How often it answered each status since a mark, by its own log."""
        found: Counter = Counter()
        with self.log.open("rb") as log:
            log.seek(since)
            for line in log:
                with suppress(ValueError, TypeError, KeyError):
                    record = json.loads(line)
                    if path in (None, record["path"]):
                        found[record["status"]] += 1
        return found


class Run:
    """`querylect train` of one config file."""

    def __init__(self, config: Path, folder: Path, log: Path, token: str) -> None:
        self.folder, self.log = folder, log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "querylect", "train", str(config)],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=with_token(token),
            )

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def steps(self) -> int:
        """Steps that it has recorded."""
        metrics = self.folder / "metrics.jsonl"
        return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0

    def wait_for_step(self, step: int, seconds: float) -> None:
        """Wait until a step is recorded. RuntimeError where the run ends before that, or takes too long."""
        self._wait(lambda: self.steps() >= step, f"step {step}", seconds)

    def wait_for_unscorable(self, times: int, seconds: float) -> None:
        """Wait until it has said so often that samples are unscorable."""
        self._wait(lambda: self.log.read_text(errors="replace").count("are unscorable") >= times, "an outage", seconds)

    def stop(self) -> int:
        """SIGTERM: it saves a checkpoint and ends; its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return -9

    def end(self) -> int:
        """The exit code of a run that ends by itself."""
        return self._process.wait(END_SECONDS)

    def kill(self) -> None:
        """Leave nothing behind."""
        self._process.kill()
        self._process.wait()

    def _wait(self, done, what: str, seconds: float) -> None:  # noqa: ANN001
        until = time.monotonic() + seconds
        while not done():
            if not self.alive() or time.monotonic() > until:
                lines = "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])
                state = "waited too long" if self.alive() else "the run ended"
                raise RuntimeError(f"{state} before {what}:\n{lines}")
            time.sleep(0.05)


def with_token(token: str) -> dict[str, str]:
    """This process's environment with a token, and one thread for numbers: the machine is shared."""
    return {**os.environ, "QUERYLECT_TOKEN": token, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def unread_bytes(port: int) -> int:
    """Bytes that have arrived on connections to a local port and were not read (/proc/net/tcp)."""
    total = 0
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, _, state, queues = line.split()[:5]
        if state != "0A" and int(local.rpartition(":")[2], 16) == port:  # 0A listens; its queue counts connections
            total += int(queues.partition(":")[2], 16)
    return total
