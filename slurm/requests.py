"""What the job script of a config requests from Slurm, and how the processes that train are started.

Without heavy imports: every job reads it when it starts.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..configs.schema import EnvironmentConfig, PolicyConfig
from ..errors import ConfigError
from ..train.memory import ProcessLayout

FOLDER = Path(__file__).parent.resolve()
CONFIGS = FOLDER.parent / "configs"
OPTION = re.compile(r"^#SBATCH --([a-z-]+)=(.*)$", re.MULTILINE)
SHARDINGS = {
    "ddp": ProcessLayout(),
    "zero2": ProcessLayout(zero=2),
    "zero3": ProcessLayout(zero=3),
    "fsdp2": ProcessLayout(fsdp=True),
}
"""What several processes may split, by the value of the variable SHARDING."""


@dataclass(frozen=True, slots=True)
class Request:
    """The processes that train."""

    script: str
    layout: ProcessLayout
    """On H100s."""


def sharding_of(policy: PolicyConfig) -> str:
    """The variable SHARDING; unset, zero2 if all weights are trained, else ddp: every GPU can hold adapters whole.

    Raises ConfigError for an unknown value.
    """
    sharding = os.environ.get("SHARDING") or ("zero2" if policy.lora is None else "ddp")
    if sharding not in SHARDINGS:
        raise ConfigError(f"the variable SHARDING is {sharding!r}; expected one of {', '.join(SHARDINGS)}.")
    return sharding


def launcher_of(policy: PolicyConfig, gpus: int, on_all: bool) -> Sequence[str]:
    """Options of `accelerate launch` for one process per GPU; none for a single process: on one GPU, and for adapters
    unless they are trained `on_all`."""
    sharding = sharding_of(policy)
    if not on_all and (policy.lora is not None or gpus <= 1):
        return []
    launcher = ["--num_processes", str(gpus), "--mixed_precision", "no", "--dynamo_backend", "no"]
    if sharding == "ddp":
        return [*launcher, "--multi_gpu"]
    if sharding == "fsdp2":
        return [*launcher, "--config_file", str(CONFIGS / "fsdp" / "fsdp2.yaml")]
    settings = str(CONFIGS / "deepspeed" / f"{sharding}.json")
    deepspeed = ["--use_deepspeed", "--deepspeed_config_file", settings, "--deepspeed_multinode_launcher", "standard"]
    return [*launcher, *deepspeed]


def script_on_one_node(env: EnvironmentConfig) -> str:
    """The script for a retriever; all but BM25 run as Contriever does."""
    return "grpo_bm25" if env.retriever == "bm25" else "grpo_contriever"


def request_of(env: EnvironmentConfig, policy: PolicyConfig) -> Request:
    """What the script of a retriever requests to train `policy`."""
    script = script_on_one_node(env)
    options = dict(OPTION.findall((FOLDER / f"{script}.sh").read_text(encoding="utf-8")))
    gpus = int(options["nodes"]) * int(options["gpus-per-node"])
    layout = replace(SHARDINGS[sharding_of(policy)], processes=gpus) if policy.lora is None else ProcessLayout()
    return Request(script, layout)
