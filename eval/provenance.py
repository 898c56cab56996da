"""Everything that a reader needs to make a result again: settings, environment, versions, seed, licence."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .. import __version__
from ..configs.load import dump_config
from ..configs.schema import RunConfig
from .identity import folder_identity

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "sentence-transformers",
    "bm25s",
    "faiss-cpu",
    "numpy",
    "scipy",
    "matplotlib",
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the numbers of a report come from."""

    name: str
    split: str
    seed: int
    permutations: int
    bootstrap: int
    policy: str
    checkpoint: str
    """Folder of the trained policy; "" where none was evaluated."""
    environment: dict[str, Any]
    """Answer of the environment about itself: retriever card, sizes, hashes."""
    versions: dict[str, str]
    licence: str
    """Licence and citation of the dataset; "" where it is not known here."""
    config: str
    """The whole configuration as YAML."""
    checkpoint_hash: str = ""
    """sha256 over the files of that folder (eval/identity.py); "" where none was evaluated."""
    dtype: str = ""
    """The type in which the policies were loaded; "" where that is not known."""


def provenance(config: RunConfig, environment: Mapping[str, Any], checkpoint: Path | None, licence: str) -> Provenance:
    """Collect the provenance of an evaluation on this machine."""
    from ..rollouts.policy import torch_dtype

    return Provenance(
        name=config.name,
        split=config.eval.split,
        seed=config.seed,
        permutations=config.eval.permutations,
        bootstrap=config.eval.bootstrap,
        policy=config.policy.model,
        checkpoint=str(checkpoint) if checkpoint is not None else "",
        environment=dict(environment),
        versions=versions(),
        licence=licence,
        config=dump_config(config),
        checkpoint_hash=folder_identity(checkpoint) if checkpoint is not None else "",
        dtype=str(torch_dtype(config.policy)).removeprefix("torch."),
    )


def versions() -> dict[str, str]:
    """Versions of this project, Python and the packages that decide the numbers, as far as they are installed."""
    found = {"querylect": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
