"""Opens the published benchmark that settings describe."""

from dataclasses import replace

from ..configs.schema import DatasetConfig
from .benchmark import Benchmark
from .leakage import without_leaks


def open_benchmark(config: DatasetConfig) -> Benchmark:
    """The configured benchmark, with leaked questions removed (`without_leaks`).

    Raises DataError if it is missing, incomplete or inconsistent.
    """
    assert config.path is not None, "DatasetConfig demands a path for every published form"
    if config.kind == "ragbench":
        from .ragbench import open_ragbench

        benchmark = open_ragbench(config.path, config.parts, config.positives)
    elif config.kind == "finagentbench":
        from .finagentbench import open_finagentbench

        benchmark = open_finagentbench(config.path, config.task)
    elif config.kind == "mteb":
        from .hub_tables import open_tables

        benchmark = open_tables(config.path, config.subset)
    else:
        from .ir_datasets import open_ir_datasets

        benchmark = open_ir_datasets(config.path)
    splits, notes = without_leaks(benchmark.name, benchmark.splits)
    return replace(benchmark, splits=splits, notes=(*benchmark.notes, *notes))
