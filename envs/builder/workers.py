"""Builds the parts of an index in several processes of one machine."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context

from ...configs.schema import EnvironmentConfig
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
    """Write all parts of a started build. Re-raises the error of a worker, BrokenProcessPool if one was killed."""
    workers, text = min(workers, len(steps.blocks)), config.model_dump_json()
    sizes: dict[int, int] = {}
    with ProcessPoolExecutor(workers, get_context("spawn"), end_with_parent) as pool:
        running = {pool.submit(_work, build_shard, text, number + 1, workers) for number in range(workers)}
        while running:
            done, running = wait(running, _POLL_SECONDS)
            for future in done:
                future.result()
            for number in range(len(steps.blocks)):
                if number not in sizes and (count := parts.done(number)) is not None:
                    sizes[number] = count
            if progress:
                progress(sum(sizes.values()), steps.documents)


def _work(build_shard: BuildShard, config: str, shard: int, shards: int) -> None:
    """One worker: its shard, an equal share of the cores, and the next GPU where there are several."""
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // shards))
    settings = EnvironmentConfig.model_validate_json(config)
    if settings.retriever != "bm25":
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        if torch.cuda.device_count() > 1:
            torch.cuda.set_device((shard - 1) % torch.cuda.device_count())
    build_shard(settings, shard, shards)
