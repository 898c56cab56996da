"""A service of an environment in a process of its own, which a test may kill."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from querylect.configs.schema import EnvironmentConfig

from .forked import Piped

SERVE = """
import sys
from querylect.configs.schema import EnvironmentConfig
from querylect.envs.server.serve import serve
serve(EnvironmentConfig.model_validate_json(sys.argv[1]), ready=lambda url: print(url, flush=True))
"""


@contextmanager
def served(config: EnvironmentConfig, folder: Path) -> Iterator[str]:
    """The URL of the service while the block runs; the folder holds its pipes."""
    with Piped([config.model_dump_json()], folder, code=SERVE) as process:
        yield process.stdout.readline().strip()
