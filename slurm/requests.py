"""What the job script of a config requests from Slurm: nodes, GPUs, and what the processes on them split.

Light: it is read at the start of every job and by dry runs.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ..configs.mix import environments
from ..configs.schema import EnvironmentConfig, PolicyConfig, RunConfig
from ..errors import ConfigError
from ..train.fsdp import check_fsdp_processes
from ..train.memory.estimate import ProcessLayout

FOLDER = Path(__file__).parent.resolve()
SCRIPTS = {"bm25": "grpo_bm25", "contriever": "grpo_contriever"}
SCRIPTS |= {"all-minilm-l6-v2": "grpo_minilm", "qwen3-embedding-0.6b": "grpo_qwen3"}
"""The script of each retriever; another dense one runs as Contriever does."""
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
    """Raise ConfigError for a path that the commands of a job would take for something else.

    Spaces, quotes, `#`, `$` and the like work.
    """
    paths = {"output": config.output, "policy.model": config.policy.model}
    for name, member in environments(config).items():
        if member.client.urls == "local":
            paths[f"mix.environments.{name}.env.index" if name else "env.index"] = member.env.index
    for setting, path in paths.items():
        if CONTROL.search(path):
            problem = (
                "holds a line break or another control character, which no line of a job script or its log can hold"
            )
        elif path.startswith("-"):
            problem = "begins with '-', which commands take for an option"
        elif setting == "output" and "\\" in path:
            problem = "holds a backslash, after which Slurm does not name the job's log"
        else:
            continue
        raise ConfigError(f"{setting} is {path!r} and {problem}. Rename it for a job.")


def training_layout(policy: PolicyConfig, gpus: int, on_all: bool) -> ProcessLayout:
    """How many processes of a job train on its GPUs, and what they split: the variable SHARDING; unset, ZeRO-2 where
    all weights are trained, nothing (DDP) for adapters, which every GPU can hold whole.

    Adapters are trained by one process, unless the script trains `on_all`. Raises ConfigError for another sharding.
    """
    if (stage := os.environ.get("ZERO")) is not None:
        raise ConfigError(
            f"the variable ZERO is {stage!r}; it has become SHARDING. Set SHARDING="
            f"{f'zero{stage}' if stage else 'ddp'} and unset ZERO."
        )
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


def request_of(
    env: EnvironmentConfig,
    policy: PolicyConfig,
    script: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    retriever_nodes: int = 0,
) -> Request:
    """What a script (None: that of the retriever) asks for when it trains `policy`; None: the script's own numbers of
    nodes and of GPUs per node."""
    script = script or SCRIPTS.get(env.retriever, "grpo_contriever")
    options, command = header(script), command_of(script)
    generating = int(command.rpartition(" ")[2]) if "--vllm-nodes" in command else 0
    training = (int(options["nodes"]) if nodes is None else nodes) - generating - retriever_nodes
    per_node = int(options["gpus-per-node"]) if gpus is None else gpus
    on_all = command.startswith("train_job_on_all")
    return Request(script, training_layout(policy, training * per_node, on_all))
