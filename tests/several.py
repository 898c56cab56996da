"""Processes of one training run: real ones, as a launcher starts them, and threads with the same collectives."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Any

import yaml
from querylect.train.processes import Processes

from .forked import Forked
from .waiting import until


class ProcessInThread(Processes):
    """One of several processes that run as threads of this one. A collective fails after 60 s."""

    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(rank, barrier.parties)
        self.board, self.barrier = board, barrier

    def all_gather(self, value: Any) -> list[Any]:
        self.board[self.rank] = value
        self.barrier.wait(60)
        values = list(self.board)
        self.barrier.wait(60)
        return values


def side_by_side(count: int, act: Callable[[Processes], Any]) -> list[Any]:
    """What `act` gives in each of `count` processes, or the error that it raised."""
    board, barrier = [None] * count, threading.Barrier(count)

    def run(rank: int) -> Any:
        try:
            return act(ProcessInThread(rank, board, barrier))
        except Exception as error:  # noqa: BLE001 (compared by the test)
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def free_port() -> int:
    """A port for a server that cannot choose one itself. Nobody gets it by chance until that server is there: it lies
    below those that Linux gives to connections and to who binds port 0 (32768 and up, if nobody changed that)."""
    while True:
        port = SystemRandom().randrange(20_000, 32_000)  # not `random`, whose seed processes of the tests may share
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port


def launcher_variables(count: int) -> list[dict[str, str]]:
    """The environment variables that a launcher sets for each process."""
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"} for rank in range(count)]


FSDP2 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "ACCELERATE_MIXED_PRECISION": "no"}
"""The variables that accelerate's launcher adds for FSDP2."""


class Started:
    """`count` processes of `querylect train` on one config, or of `code`; killed at the end of the block."""

    def __init__(
        self, config, folder: Path, count: int, *arguments: str, code: str | None = None, **surroundings: str
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        config_path = folder / "run.yaml"
        config_path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
        self.processes = [
            Forked(
                ["train", str(config_path), *arguments],
                folder / f"out-{rank}",
                folder / f"err-{rank}",
                variables | surroundings,
                code=code,
            )
            for rank, variables in enumerate(launcher_variables(count))
        ]

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait(60)

    def codes(self) -> list[int]:
        """Their exit codes, once all have ended."""
        return [process.wait(400) for process in self.processes]

    def stderr(self, rank: int) -> str:
        """The stderr of one of them."""
        return (self.folder / f"err-{rank}").read_text()

    def wait_for_step(self, metrics: Path, step: int) -> int:
        """How many steps are logged, once there are `step`."""

        def logged() -> int:
            assert all(process.poll() is None for process in self.processes), "one ended by itself:\n" + self.stderr(0)
            lines = len(metrics.read_bytes().splitlines()) if metrics.exists() else 0
            return lines if lines >= step else 0

        return until(logged)
