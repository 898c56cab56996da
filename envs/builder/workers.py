"""Builds the parts of an index in several processes of one machine."""

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from ...configs.schema import EnvironmentConfig
from ...errors import QuerylectError
from ..parent import end_with_parent
from ..retrievers.base import Progress
from .shards import BuildSteps, IndexShards

BuildShard = Callable[[EnvironmentConfig, int, int], object]
"""Writes the parts of a shard: its number, and of how many."""

_POLL_SECONDS = 0.5


def run_workers(
    config: EnvironmentConfig,
    steps: BuildSteps,
    parts: IndexShards,
    workers: int,
    progress: Progress | None,
    build_shard: BuildShard,
) -> None:
    """Write all parts of a started build. Re-raises the error of a worker; no worker outlives this call."""
    context = get_context("spawn")
    workers = min(workers, len(steps.blocks))
    running = {}
    try:
        for number in range(workers):
            receive, send = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(build_shard, config.model_dump_json(), number + 1, workers, send), daemon=True
            )
            process.start()
            send.close()
            running[receive] = process
        sizes: dict[int, int] = {}
        while running:
            for connection in wait(list(running), _POLL_SECONDS):
                assert isinstance(connection, Connection)
                process = running.pop(connection)
                _raise_failure(connection, process)
            if progress:
                for number in range(len(steps.blocks)):
                    if number not in sizes and (count := parts.done(steps, number)) is not None:
                        sizes[number] = count
                progress(sum(sizes.values()), steps.documents)
    finally:
        for process in running.values():
            process.kill()
            process.join()


def _raise_failure(connection: Connection, process: SpawnProcess) -> None:
    """Raise the error that an ended worker reported, if any, or an error if it ended without a report."""
    try:
        error: QuerylectError | None = connection.recv()
    except EOFError:
        process.join()
        raise QuerylectError(
            f"a worker of the build ended by itself (exit code {process.exitcode}); -9 often says that memory ran out. "
            "Start the build again, with fewer workers where that is so: what is finished is kept."
        ) from None
    process.join()
    if error is not None:
        raise error


def _work(build_shard: BuildShard, config: str, shard: int, shards: int, report: Connection) -> None:
    """One worker: its shard, an equal share of the cores, and the next GPU where there are several."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // shards))
    settings = EnvironmentConfig.model_validate_json(config)
    if settings.retriever != "bm25":
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        if torch.cuda.device_count() > 1:
            torch.cuda.set_device((shard - 1) % torch.cuda.device_count())
    try:
        build_shard(settings, shard, shards)
        report.send(None)
    except QuerylectError as error:
        report.send(error)
