"""Everything needed to reproduce a result: settings, environment, versions, seed, licence."""

from dataclasses import dataclass
from pathlib import Path

from ..configs.load import dump_config
from ..configs.schema import RunConfig
from ..envs.schemas import EnvironmentInfo
from ..provenance import installed_versions, versions
from ..version import __version__


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
    environment: EnvironmentInfo
    """The environment's description of itself: retriever card, sizes, hashes."""
    versions: dict[str, str]
    licence: str
    """Licence and citation of the dataset; "" where unknown."""
    config: str
    """The whole configuration as YAML."""
    checkpoint_hash: str = ""
    """SHA-256 over the files of the checkpoint (eval/identity.py); "" where none was evaluated."""
    dtype: str = ""
    """The dtype in which the policies were loaded; "" where unknown."""


def answering_versions() -> dict[str, str]:
    """Versions of this project and of the installed libraries that generate text, which may change answers."""
    return {"querylect": __version__, **installed_versions(("transformers", "vllm"))}


def provenance(
    config: RunConfig, environment: EnvironmentInfo, checkpoint: Path | None, checkpoint_hash: str, licence: str
) -> Provenance:
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
        environment=environment,
        versions=versions(),
        licence=licence,
        config=dump_config(config),
        checkpoint_hash=checkpoint_hash,
        dtype=str(torch_dtype(config.policy)).removeprefix("torch."),
    )
