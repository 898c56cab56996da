"""What the job script of a config requests from Slurm: nodes, GPUs, and what the processes on them split.

Light: it is read at the start of every job and by dry runs.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ..configs.schema import EnvironmentConfig, PolicyConfig, RunConfig
from ..errors import ConfigError
from ..train.fsdp import check_fsdp_processes
from ..train.memory.estimate import ProcessLayout

FOLDER = Path(__file__).parent.resolve()
ON_ONE_NODE = ("grpo_bm25", "grpo_contriever")
"""Scripts that train on one node; every retriever other than BM25 runs as Contriever does."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
OPTION = re.compile(r"^#SBATCH --([a-z-]+)=?(.*)$")
BODY = re.compile(r"^(\w+_job\w*(?: --vllm-nodes \d+)?)(?: (\w+))? \"\$@\"$", re.MULTILINE)
"""The last line of a script: how it trains, and the config that it takes where none is given."""
SHARDINGS = {
    "ddp": ProcessLayout(),
    "zero2": ProcessLayout(zero=2),
    "zero3": ProcessLayout(zero=3),
    "fsdp2": ProcessLayout(fsdp=True),
}
"""What several processes may split, by the value of the variable SHARDING."""
ONE_GPU = {"gpus-per-node": "1", "cpus-per-task": "16", "mem": "128G"}
"""What `querylect launch` asks for instead where adapters are trained, by one process."""


@dataclass(frozen=True, slots=True)
class Request:
    """The processes that train."""

    script: str
    layout: ProcessLayout
    """On H100s."""


def refuse_paths(config: RunConfig) -> None:
    """Raise ConfigError for a path that no line of a job script can hold; spaces, quotes, `#` and `$` work."""
    for setting, path in (("output", config.output), ("policy.model", config.policy.model)):
        if CONTROL.search(path) or path.startswith("-") or "\\" in path:
            raise ConfigError(
                f"{setting} is {path!r}: a job's path holds no control character and no backslash, and does not begin "
                "with '-'. Rename it."
            )


def training_layout(policy: PolicyConfig, gpus: int, on_all: bool) -> ProcessLayout:
    """How many processes of a job train on its GPUs, and what they split: the variable SHARDING; unset, ZeRO-2 where
    all weights are trained, nothing (DDP) for adapters, which every GPU can hold whole.

    Adapters are trained by one process, unless the script trains `on_all`. Raises ConfigError for another sharding.
    """
    sharding = os.environ.get("SHARDING", "zero2" if policy.lora is None else "ddp")
    if sharding not in SHARDINGS:
        raise ConfigError(
            f"the variable SHARDING is {sharding!r}; expected one of {', '.join(SHARDINGS)}. Set one of these, or "
            "unset it."
        )
    if not on_all and (policy.lora is not None or gpus <= 1):
        return ProcessLayout()
    layout = replace(SHARDINGS[sharding], processes=max(1, gpus))
    if layout.fsdp:
        check_fsdp_processes(layout.processes)
    return layout


def header(script: str) -> dict[str, str]:
    """The #SBATCH options of a script of this folder."""
    lines = (FOLDER / f"{script}.sh").read_text(encoding="utf-8").splitlines()
    return {match[1]: match[2] for line in lines if (match := OPTION.match(line))}


def command_of(script: str) -> str:
    """The last line of a script of this folder: how it trains."""
    body = BODY.search((FOLDER / f"{script}.sh").read_text(encoding="utf-8"))
    assert body is not None, f"{script}.sh calls no job"
    return body[1]


def script_on_one_node(env: EnvironmentConfig) -> str:
    return "grpo_bm25" if env.retriever == "bm25" else "grpo_contriever"


def request_of(env: EnvironmentConfig, policy: PolicyConfig) -> Request:
    """What the script of a retriever asks for when it trains `policy`."""
    script = script_on_one_node(env)
    options = header(script)
    return Request(script, training_layout(policy, int(options["nodes"]) * int(options["gpus-per-node"]), on_all=False))
